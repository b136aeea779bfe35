"""Tools for development: the loopback Hub, the demo family, the measures."""
