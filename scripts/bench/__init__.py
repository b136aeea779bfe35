"""Measures: what the project promises in numbers, each row beside what it is compared with, in one run."""
