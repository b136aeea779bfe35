"""What goes wrong on the way: one clear line each, nothing half there, and another try goes on."""

from __future__ import annotations

import sys

import pytest

from indexer.console.terminal import explain
from indexer.errors import AtlasError
from indexer.upkeep.maintenance import represent
from tests.hubs import use_fake_clock
from tests.share.conftest import NAME, is_whole, pushed_files


def told_by(push):
    with pytest.raises((AtlasError, OSError)) as caught:
        push()
    sentence = explain(caught.value)
    assert "\n" not in sentence
    return sentence


def test_no_permission(ann, atlas):
    ann.use_token("stranger")
    assert "does not let this account write to ann/atlas (HTTP 403)" in told_by(lambda: ann.push(atlas))
    ann.use_token(None)
    assert "does not let this account write to ann/atlas (HTTP 401)" in told_by(lambda: ann.push(atlas))
    ann.use_token("mine")
    ann.push(atlas)
    ann.use_token("stranger")
    with atlas.locked("test"):
        represent(atlas, "output")
    assert "does not let this account write to" in told_by(lambda: ann.push(atlas))
    assert is_whole(ann.hub)


@pytest.mark.slow
def test_two_pushers(ann, atlas, monkeypatch):
    """Another commit is made between the look at the head and ours."""
    ann.push(atlas)
    with atlas.locked("test"):
        represent(atlas, "output")
    datasets = ann.hub.datasets
    commit = datasets.commit

    def after_another(repo_id, parent, *rest):
        monkeypatch.setattr(datasets, "commit", commit)
        commit(NAME, None, "theirs", {"note.txt": datasets.describe_regular(b"x")}, [])
        return commit(repo_id, parent, *rest)

    monkeypatch.setattr(datasets, "commit", after_another)
    assert "Somebody else has published to ann/atlas meanwhile" in told_by(lambda: ann.push(atlas))
    files = pushed_files(ann.hub)
    assert "note.txt" in files
    assert not any(".output." in path for path in files)
    ann.push(atlas)
    assert any(".output." in path for path in pushed_files(ann.hub))


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/api/repos/create", "/preupload/", "/objects/batch", "/commit/", "/tag/"])
def test_a_rate_limit_is_waited_for(ann, atlas, monkeypatch, path):
    clock = use_fake_clock(monkeypatch, say=ann.said.append)
    fault = ann.hub.faults.add(path, status=429, retry_after=7, nth=1)
    monkeypatch.setattr("indexer.share.push.install_session", lambda *_: None)
    monkeypatch.setattr("indexer.share.repository.install_session", lambda *_: None)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", clock.sleep)
    ann.push(atlas)
    assert fault.struck == 1
    assert any(7 <= seconds < 9 for seconds in clock.slept)
    assert is_whole(ann.hub)
    assert "refs/tags/g1" in ann.hub.datasets.find(NAME).refs


def test_an_answer_that_is_lost_behind_a_commit_that_was_made(ann, atlas):
    fault = ann.hub.faults.add("/commit/", drop_after=0, nth=1)
    report = ann.push(atlas)
    assert fault.struck == 1
    repository = ann.hub.datasets.find(NAME)
    assert report.commit == repository.refs["main"]
    assert len(repository.commits) == 2
    assert is_whole(ann.hub)


@pytest.mark.slow
def test_an_upload_that_breaks_off_is_not_begun_again(ann, atlas):
    """The connection is cut within the second file; what had arrived is not sent again."""
    ann.hub.faults.add("/dataset-objects/", method="PUT", since=2, status=403)
    sentence = told_by(lambda: ann.push(atlas))
    assert "ann/atlas" in sentence
    assert not is_whole(ann.hub)
    sent = {one.path for one in ann.hub.requests if one.method == "PUT" and one.status == 200}
    ann.hub.faults.clear()
    ann.hub.reset_log()
    ann.push(atlas)
    assert sent
    assert not sent & {one.path for one in ann.hub.requests if one.method == "PUT"}
    assert is_whole(ann.hub)


def test_a_full_disk_while_it_is_prepared(ann, atlas, monkeypatch):
    import errno

    def full(*_arguments, **_named):
        raise OSError(errno.ENOSPC, "No space left on device", "somewhere")

    monkeypatch.setattr("shutil.copyfileobj", full)
    monkeypatch.setattr("fcntl.ioctl", full)
    assert told_by(lambda: ann.push(atlas)).startswith("The disk is full at somewhere.")
    assert ann.hub.datasets.find(NAME) is None
    assert not (atlas.root / ".push" / "files").exists()


@pytest.mark.slow
def test_another_push_of_the_same_atlas_is_not_disturbed(ann, atlas):
    from indexer.share.staging import staged

    with staged(atlas, with_records=False):
        assert "Another push of" in told_by(lambda: ann.push(atlas))
    ann.push(atlas)


def test_no_bar_of_a_library_is_drawn_where_ours_would_not_be(ann, atlas, monkeypatch, capsys):
    from huggingface_hub import constants
    from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars

    # As for a person: tests switch the library's bars off by a variable, which it reads at import.
    for module in (sys.modules["huggingface_hub.utils.tqdm"], constants):
        monkeypatch.setattr(module, "HF_HUB_DISABLE_PROGRESS_BARS", None)
    enable_progress_bars()  # a test before may have left them off
    ann.push(atlas, with_records=True)
    assert capsys.readouterr().err == ""
    assert not are_progress_bars_disabled()  # the caller's setting


@pytest.mark.slow
def test_a_server_that_fails(ann, atlas):
    ann.hub.faults.add("/api/datasets/ann/atlas/revision", status=500)
    assert "HTTP 500" in told_by(lambda: ann.push(atlas))
