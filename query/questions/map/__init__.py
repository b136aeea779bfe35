"""`query map`: the fine-tunes of a base as points in the plane."""
