"""Synthetic atlases with the statistics of real ones, in seconds."""
