"""What lies in folders and buckets of models, on one page: `index scan`. Nothing is stored, and no atlas is needed."""
