"""Benchmarks: every promise of the project in numbers, compared with its rival in the same run."""
