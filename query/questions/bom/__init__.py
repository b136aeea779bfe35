"""The bill of materials of a model: what it was made from, as its weights show, in three formats."""
