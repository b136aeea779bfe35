"""Which kind of change made a model from its base: one label, with its probability and evidence, from a record."""
