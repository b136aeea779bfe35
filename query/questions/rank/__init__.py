"""`query rank`: how the rank of a change moves with depth."""
