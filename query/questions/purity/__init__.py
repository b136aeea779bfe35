"""`query purity`: how many of a model's nearest neighbours were tuned on the same datasets."""
