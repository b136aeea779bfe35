"""Finds the model that another was made from by its weights, and compares that with its card."""
