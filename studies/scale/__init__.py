"""Synthetic atlases with the statistics of real ones, and what an atlas of 10,000, 100,000, 1,000,000 models costs."""
