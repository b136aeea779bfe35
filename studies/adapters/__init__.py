"""Adapters that share the seed of their start: trained, indexed from a loopback Hub, compared before and after."""
