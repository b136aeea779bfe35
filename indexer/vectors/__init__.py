"""Vectors on disk: one file for each (base, representation), and exact search in it."""
