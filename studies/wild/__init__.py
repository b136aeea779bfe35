"""The models of strangers: an atlas of real adapters by many authors, and what every way to compare them is worth."""
