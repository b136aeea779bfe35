"""`query clusters`: clusters of similar models, and their agreement with datasets and authors."""
