"""Files on disk: written whole or not at all, known by their checksums, and opened only where they are files."""
