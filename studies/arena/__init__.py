"""Tests on models that nothing was chosen on: what vectors and answers are worth (``docs/evidence/arena.md``)."""
