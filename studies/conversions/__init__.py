"""How often the source of a conversion is found and proved: python -m studies.conversions."""
