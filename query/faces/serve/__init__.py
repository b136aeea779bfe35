"""An atlas served to other programs."""
