"""Who does the units of work, and with how much of the machine."""
