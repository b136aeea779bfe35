"""Where strangers' SQL runs: a locked connection in a process without powers."""
