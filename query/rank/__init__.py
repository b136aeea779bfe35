"""Parts of `query rank`: values, fits, which models count, and how they are shown."""
