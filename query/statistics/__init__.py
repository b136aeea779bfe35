"""Neighbours in order, intervals and permutations: what several questions count with."""
