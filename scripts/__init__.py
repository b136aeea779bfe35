"""Tools beside the product: the loopback Hub, the demo family, the measures."""
