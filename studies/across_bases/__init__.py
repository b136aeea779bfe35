"""Models of different bases that were tuned on the same data: how well the words that they moved show it."""
