"""The tests that were not made to be passed: what vectors and verdicts are worth (``docs/arena.md``)."""
