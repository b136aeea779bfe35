"""Requests to the Hub: manners, pace, errors in our words, and bytes of files by range."""
