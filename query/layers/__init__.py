"""`query layers`: where a model changed, by stack, layer and family."""
