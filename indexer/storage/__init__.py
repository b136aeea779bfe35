"""Files on disk: written atomically, identified by checksums."""
