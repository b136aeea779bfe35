"""Where adapters began: the random numbers that their factors were initialised with, found from the weights alone."""
