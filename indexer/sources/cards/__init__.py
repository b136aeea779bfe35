"""Reads what models say of themselves: README, results, dataset names, and the head in config.json."""
