"""The demo: from real fine-tuning to answers, on one machine, without network."""
