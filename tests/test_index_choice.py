"""The choice of index: an option says one thing and leaves the rest, and what is added later is searched alike."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from indexer.atlas import AtlasFolder
from indexer.builds.options import index_change
from indexer.cli import main
from indexer.database.reading import Reading
from indexer.publish.maintenance import rebuild, represent
from indexer.vectors.choice import IndexChange, IndexChoice
from indexer.vectors.published import read_published
from tests.tiny_hub import BASE

ASKED = IndexChoice("RaBitQ2", 2 << 30, 0.5)


def chosen(atlas: AtlasFolder, representation: str = "input") -> IndexChoice:
    with Reading(atlas.database) as connection:
        published = read_published(connection, BASE, representation)
    assert published is not None
    return published.choice


def test_each_option_changes_one_thing():
    assert ASKED.changed(None) == ASKED
    assert ASKED.changed(IndexChange()) == ASKED
    assert ASKED.changed(IndexChange(index="exact")) == IndexChoice("exact", 2 << 30, 0.5)
    assert ASKED.changed(IndexChange(memory=1)) == IndexChoice("RaBitQ2", 1, 0.5)
    assert ASKED.changed(IndexChange(promised=0.0)) == IndexChoice("RaBitQ2", 2 << 30, 0.0)
    assert IndexChoice().changed(ASKED) == ASKED


def test_options_of_the_command_say_no_more_than_they_were_given():
    asked = [index_change(**chosen) for chosen in ({"index_memory": "4G"}, {"recall": 0.0}, {"index": "exact"}, {})]
    assert asked == [IndexChange(memory=4 * 10**9), IndexChange(promised=0.0), IndexChange("exact"), None]


@pytest.mark.slow
def test_a_publish_that_says_one_thing_leaves_the_rest_and_a_later_representation_takes_it(atlas):
    represent(atlas, "spectrum", ASKED)
    assert chosen(atlas) == chosen(atlas, "spectrum") == ASKED
    ran = CliRunner().invoke(main, ["publish", "--atlas", str(atlas.root), "--index-memory", "4G", "--json"])
    assert ran.exit_code == 0, ran.output
    after = IndexChoice("RaBitQ2", 4 * 10**9, 0.5)
    assert chosen(atlas) == chosen(atlas, "spectrum") == after
    represent(atlas, "output")
    assert chosen(atlas, "output") == after


@pytest.mark.slow
def test_a_rebuild_keeps_the_choice_and_says_what_becomes_of_it(atlas):
    represent(atlas, "spectrum", ASKED)
    said: list[str] = []
    rebuild(atlas, say=said.append)
    assert chosen(atlas) == chosen(atlas, "spectrum") == ASKED
    assert any("RaBitQ2" in sentence for sentence in said)
