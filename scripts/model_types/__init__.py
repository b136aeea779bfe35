"""Every model type of the installed transformers, built small: which of them are located."""
