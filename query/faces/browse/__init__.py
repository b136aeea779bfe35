"""`query browse`: a local page over the whole atlas."""
