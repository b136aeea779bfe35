"""Requests to the Hub: limits, retries, errors, and ranges of files."""
