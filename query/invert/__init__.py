"""The input of a model again, from the output of each of its layers."""
