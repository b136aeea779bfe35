"""Predictions of the datasets of a model from its nearest neighbours and its head, and their evaluation."""
