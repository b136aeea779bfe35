"""What a model was trained on, from the rows of its embeddings that moved."""
