"""A statement that meets a damaged block says that the file is damaged, and how it is made again."""

from __future__ import annotations

import pytest

from indexer.errors import AtlasError
from query import Atlas


def test_a_flipped_bit_is_told_with_its_repair(atlas):
    content = bytearray(atlas.database.read_bytes())
    places = [at for at in range(len(content)) if content.startswith(b"ann/glue-0", at)]
    for at in places:
        content[at] ^= 1
    atlas.database.write_bytes(content)
    for ask in (lambda opened: opened.sql("SELECT model FROM fine_tunes"),
                lambda opened: opened.similar("bob/glue-1", where="model <> 'x'")):  # fmt: skip
        with pytest.raises(AtlasError) as caught, Atlas(atlas.root) as opened:
            ask(opened)
        assert "atlas.duckdb is damaged (" in caught.value.message
        assert "does not match stored checksum" in caught.value.message
        assert "index rebuild" in caught.value.hint
