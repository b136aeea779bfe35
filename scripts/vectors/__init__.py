"""How well vectors of several makes group real fine-tunes by their data; docs/vectors.md has the table."""
