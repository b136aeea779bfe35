"""Parts of a publish: the private copy of the database, rows, vectors, neighbours and duplicates."""
