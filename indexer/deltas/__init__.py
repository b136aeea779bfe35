"""From a checkpoint and its base to a record: δW matrix by matrix, its singular triplets, its spectrum."""
