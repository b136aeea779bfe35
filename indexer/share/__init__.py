"""Atlases on the Hub: pushed as datasets, pulled, opened from the cache; and merged."""
