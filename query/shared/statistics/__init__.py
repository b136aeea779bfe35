"""Neighbours in order, intervals and permutations, shared by several questions."""
