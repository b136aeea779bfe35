"""Vectors on disk: immutable segments of exact ones, a compressed index beside them where they are many, and search."""
