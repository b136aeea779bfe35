"""Which tensors of a checkpoint are its block matrices: a data file for each group of architectures, and the reader."""
