"""The block matrices among the tensors of a checkpoint: a data file for each group of architectures, and the reader."""
