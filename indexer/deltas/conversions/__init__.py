"""Conversions: of which model a file in few bits is a copy, and whether it is one in every tensor."""
