"""How well `query ask` finds the models of a trained family from texts that none of them saw, and what chance does."""
