"""Which tensors of a checkpoint are which block matrices: a data file for each group of architectures, and its reader."""
