"""One real, tiny file set of every kind of upload on a loopback Hub, and what becomes of each."""
