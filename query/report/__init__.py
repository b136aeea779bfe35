"""The rooms of the report: one for each section, and what they are made from."""
