"""How a model becomes a vector: one file for each kind of representation, and the list of all."""
