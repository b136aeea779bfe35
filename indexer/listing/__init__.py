"""What the Hub lists for a base: questions, answers checked row by row, and the listing on disk."""
