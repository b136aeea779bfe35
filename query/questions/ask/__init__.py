"""Finds the models that were probably tuned on texts like these, and the texts that a model was tuned on."""
