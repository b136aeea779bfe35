"""The starts of adapters: the random numbers that initialised their factors, found from the weights alone."""
