"""What single neurons look for, as pictures."""
