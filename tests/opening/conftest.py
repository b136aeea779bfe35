"""Atlases to be attacked."""

from tests.opening.strangers import mine, planted

__all__ = ["mine", "planted"]
