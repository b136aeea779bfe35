"""Killed at ten moments of a push and of a pull: readers see the state before or after, and the next try ends it."""

from __future__ import annotations

import copy
import json
import shutil

import pytest

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError
from indexer.publish.origin import adopt
from indexer.upkeep.maintenance import represent
from indexer.upkeep.verification import verify
from query import Atlas
from tests.killed import killable, moments
from tests.share.conftest import NAME, atlas_content, is_whole, open_hub, pushed_files, shell_of

pytestmark = pytest.mark.slow


def generation(hub) -> int:
    """That of the atlas that a reader sees now."""
    return json.loads(pushed_files(hub)["atlas.json"])["generation"]


def remembered(hub):
    """A function that puts the Hub's datasets back to what they are now."""
    repository, objects = hub.datasets.find(NAME), hub.datasets.objects
    facts, kept = copy.deepcopy(vars(repository)), {path.name for path in objects.iterdir()}

    def restore():
        vars(repository).update(copy.deepcopy(facts))
        for path in objects.iterdir():
            if path.name not in kept:
                path.unlink(missing_ok=True)  # the Hub may still be renaming what the killed process sent

    return restore


@pytest.mark.timeout(900)
def test_a_push_that_is_killed_shows_nothing_or_all(made, tmp_path):
    with open_hub(tmp_path / "hub") as hub:
        ann = shell_of(hub, tmp_path / "ann")
        atlas = AtlasFolder(shutil.copytree(made, ann.folder / "atlas"))
        with killable(ann, "index", "push", NAME) as run:
            assert run(0)[0] == 0
            with atlas.locked("test"):
                represent(atlas, "output")
            before, restore = generation(hub), remembered(hub)
            code, total = run(0)
            after = generation(hub)
            assert (code, after != before) == (0, True)
            seen = []
            for moment in moments(total):
                restore()
                assert run(moment)[0] == -9, moment
                assert is_whole(hub)
                seen.append(generation(hub))
            assert set(seen) == {before, after}  # before the commit, and behind it
            assert run(0)[0] == 0
        assert is_whole(hub)
        assert generation(hub) == after
        assert "refs/tags/g2" in hub.datasets.find(NAME).refs
        assert not (atlas.root / ".push").exists()
        assert verify(atlas) == []


@pytest.mark.timeout(900)
def test_a_pull_that_is_killed_leaves_no_atlas_or_a_whole_one(made, tmp_path):
    with open_hub(tmp_path / "hub") as hub:
        ann = shell_of(hub, tmp_path / "ann")
        atlas = AtlasFolder(shutil.copytree(made, ann.folder / "atlas"))
        assert ann("index", "push", NAME, "--with-records").code == 0
        pushed = atlas_content(atlas.root)
        got = AtlasFolder(ann.folder / "got")
        with killable(ann, "index", "pull", NAME, "--with-records", "--atlas", "got") as run:
            code, total = run(0)
            assert code == 0
            assert atlas_content(got.root) == pushed
            for moment in moments(total):
                shutil.rmtree(got.root)
                code, _ = run(moment)
                assert code == -9
                if not got.origin.exists():  # then nothing lies outside of the pull's own folder
                    assert {path.name for path in got.root.glob("*")} <= {"lock", ".pull"}
                elif not pushed.items() <= atlas_content(got.root).items():
                    with pytest.raises(AtlasError, match="was pulled without records"):
                        adopt(got)
                if got.database.exists():
                    assert got.origin.exists()  # so it does not pass for one of this machine
                    with Atlas(got.root) as opened:
                        assert len(opened.vectors("org/tiny-base")) == 9
                code, _ = run(0)
                assert code == 0, moment
                assert atlas_content(got.root) == pushed
            # From one generation to the next.
            with atlas.locked("test"):
                represent(atlas, "output")
            assert ann("index", "push", NAME, "--with-records").code == 0
            shutil.copytree(got.root, tmp_path / "kept")
            for moment in moments(total)[::3]:
                shutil.rmtree(got.root)
                shutil.copytree(tmp_path / "kept", got.root)
                run(moment)
                with Atlas(got.root) as opened:
                    assert opened.generation in (1, 2)
                    assert len(opened.vectors("org/tiny-base")) == 9
                code, _ = run(0)
                assert code == 0
                with Atlas(got.root) as opened:
                    assert opened.generation == 2
