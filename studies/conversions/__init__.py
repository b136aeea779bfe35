"""Conversions of planted models: see ``__main__``."""
