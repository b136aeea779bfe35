"""The questions: one folder or file for each."""
