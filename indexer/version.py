"""The version of both packages; apart from ``indexer`` itself, which leads to everything."""

__version__ = "0.2.0"
