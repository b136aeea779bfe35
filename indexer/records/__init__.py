"""What is kept of one model at one commit, where it lies, and the vectors that are made of it."""
