"""What is stored about one model at one commit, and the vectors that are made of it."""
