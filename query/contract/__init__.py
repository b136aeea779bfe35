"""What a question is and what its answer is."""
