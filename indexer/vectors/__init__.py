"""Vectors on disk: immutable segments, and exact search in them."""
