"""Which model a model was made from: what the weights say, and whether the card agrees."""
