"""Vectors on disk: immutable segments of exact vectors, a compressed index if there are many, and search."""
