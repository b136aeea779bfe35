"""Which tensor of a checkpoint is what: one data file for each kin of architectures, and what reads them."""
