"""What a push keeps back: models that not everybody may see, what was removed, passwords, paths and addresses."""

from __future__ import annotations

import io
import json
import shutil
import tarfile

import duckdb
import pytest

from indexer.atlas import AtlasFolder
from indexer.builds.add import add
from indexer.errors import AtlasError
from indexer.listing.listing import Listing
from indexer.sources.folder import place_of
from indexer.sources.questions import BadRow
from indexer.upkeep.maintenance import rebuild
from indexer.upkeep.removal import remove
from scripts.loopback_hub import LoopbackHub
from tests.adapters.test_adapter_bases import add_adapter
from tests.database import execute
from tests.hubs import reset_session
from tests.share.conftest import NAME, WRITERS, Person, pushed_files, shell_of
from tests.tiny_hub import BASE, describe

SECRET = "ann/glue-0"


def facts_of(store, name: str) -> dict:
    return json.loads((store / f"{name}.repo.json").read_text())


@pytest.fixture(scope="module")
def guarded(tiny_store, tmp_path_factory):
    """A store with a private and a gated model, and the atlas of somebody who may see both, built with a password."""
    folder = tmp_path_factory.mktemp("guarded")
    store = tiny_store(1, folder / "store")
    describe(store, SECRET, **facts_of(store, SECRET), private=True)
    describe(store, "ann/imdb-0", **facts_of(store, "ann/imdb-0"), gated="manual")
    with LoopbackHub(store, tokens={"mine": [SECRET, "ann/imdb-0"]}) as hub:
        shell = shell_of(hub, folder)
        with_password = hub.endpoint.replace("http://", "http://joe:hunter2@")  # then no token is sent
        for endpoint in (with_password, hub.endpoint):
            ran = shell("index", "build", "--base", BASE, HF_ENDPOINT=endpoint)
            assert ran.code == 0, ran.err
            assert "hunter2" not in ran.err
    return folder


@pytest.fixture
def owner(guarded, tmp_path, monkeypatch):
    """Its owner at a Hub that has the models and takes datasets; the atlas is a copy."""
    shutil.copytree(guarded / "atlas", tmp_path / "atlas")
    tokens = {"mine": [SECRET, "ann/imdb-0"]}
    with LoopbackHub(guarded / "store", tokens=tokens, datasets=tmp_path / "datasets", writers=WRITERS) as hub:
        try:
            yield Person(hub, tmp_path, monkeypatch)
        finally:
            reset_session()


@pytest.fixture
def own(owner, tmp_path):
    return AtlasFolder(tmp_path / "atlas")


def pushed_text(hub) -> bytes:
    """Every byte that was pushed, members of packs and columns of Parquet included."""
    found = []
    for path, content in pushed_files(hub).items():
        found.append(content)
        if path.endswith(".tar"):
            with tarfile.open(fileobj=io.BytesIO(content)) as tar:
                found += [tar.extractfile(member).read() for member in tar]
        if path.endswith(".parquet"):
            with duckdb.connect() as plain:
                (hub.datasets.objects / "read.parquet").write_bytes(content)
                found.append(repr(plain.execute(f"FROM '{hub.datasets.objects}/read.parquet'").fetchall()).encode())
    return b"\n".join(found)


def test_private_and_gated_models_are_named_before_anything_is_sent(owner, own):
    with pytest.raises(AtlasError, match=r"private or gated on the Hub.*: ann/glue-0, ann/imdb-0\.") as caught:
        owner.push(own)
    assert "--with-private" in caught.value.hint
    assert owner.hub.datasets.find(NAME) is None
    assert not (own.root / ".push").exists()
    assert owner.push(own, with_private=True).models == 3


@pytest.mark.slow
def test_it_is_known_after_a_rebuild_without_the_listing(owner, own):
    own.listing(BASE).unlink()
    with own.locked("test"):
        rebuild(own)
    with pytest.raises(AtlasError, match="ann/glue-0, ann/imdb-0"):
        owner.push(own)


@pytest.mark.slow
def test_models_of_which_only_the_record_is_left_are_not_taken_for_public(owner, own):
    remove(SECRET, atlas=own.root)
    remove("ann/imdb-0", atlas=own.root)
    own.listing(BASE).unlink()
    own.database.unlink()
    with own.locked("test"):
        rebuild(own)
    with pytest.raises(AtlasError, match="ann/squad-0"):
        owner.push(own)


@pytest.mark.slow
def test_a_gated_model_without_a_record_may_be_pushed(owner, own):
    remove(SECRET, atlas=own.root)
    execute(own.database, "UPDATE fine_tunes SET status = 'skipped' WHERE model = 'ann/imdb-0'")
    assert owner.push(own).commit


@pytest.mark.slow
def test_a_base_that_not_everybody_may_read_is_not_a_secret_without_its_matrices(owner, own, guarded):
    for name in (SECRET, "ann/imdb-0"):
        remove(name, atlas=own.root)
    settings = guarded / "store" / f"{BASE}.repo.json"
    before = settings.read_text()
    try:
        describe(guarded / "store", BASE, **json.loads(before), gated="auto")
        assert owner.push(own).commit
        with pytest.raises(AtlasError, match=f"The base {BASE} is gated, and its block matrices are among the records"):
            owner.push(own, with_records=True)
    finally:
        settings.write_text(before)


@pytest.mark.slow
def test_a_folder_with_a_name_of_the_hub_is_a_folder_all_the_same(owner, own, guarded):
    add(guarded / "store/ann/squad-0", BASE, own.root, name="ann/mine")
    with pytest.raises(AtlasError, match=r"added from local folders: ann/mine\.") as caught:
        owner.push(own, with_private=True)
    assert "--with-local" in caught.value.hint
    assert owner.push(own, with_private=True, with_local=True).models == 4


def test_no_password_no_mirror_and_no_path_travels(owner, own, guarded, tmp_path):
    add_adapter(tmp_path / "hidden-place", "run", f"{tmp_path}/hidden-place/bases/tiny-base")
    (tmp_path / "hidden-place/run/README.md").write_text(f"---\ndatasets:\n- {tmp_path}/hidden-place/data\n---\n")
    add(tmp_path / "hidden-place/run", BASE, own.root)
    add_adapter(tmp_path / "hidden-place", "checkpoint-7", BASE)
    (tmp_path / "hidden-place/axolotl_config.yaml").write_text(
        f"base_model: {tmp_path}/hidden-place/tiny\nx: {tmp_path}\n"
    )
    add(tmp_path / "hidden-place/checkpoint-7", BASE, own.root, name="ann/checkpoint-7")
    key = place_of(tmp_path / "hidden-place")
    with duckdb.connect(str(own.database), read_only=True) as connection:
        assert ("./tiny-base", "base") in connection.execute("SELECT named, verdict FROM adapter_bases").fetchall()
        assert connection.execute(
            "SELECT run_key, stated_base FROM fine_tunes JOIN records USING (model_id) WHERE run_key IS NOT NULL"
        ).fetchall() == [(key, "org/tiny-base")]
        assert connection.execute("SELECT raw FROM model_datasets WHERE raw LIKE '%data'").fetchall() == [("./data",)]
        assert "joe" not in str(connection.execute("SELECT spec FROM builds").fetchall())
    # Whatever wrote the row, an address with a password stays here.
    with duckdb.connect(str(own.database)) as connection:
        spec = json.dumps({"rank": 8, "endpoint": "http://joe:hunter2@mirror.internal:8080", "options": []})
        connection.execute("UPDATE builds SET spec = ? WHERE spec->>'endpoint' IS NOT NULL", [spec])
    owner.push(own, with_private=True, with_local=True, with_records=True)
    text = pushed_text(owner.hub)
    for secret in (
        b"hunter2",
        b"joe",
        b"mirror.internal",
        b"127.0.0.1",
        b"hidden-place",
        str(tmp_path).encode(),
        key.encode(),
    ):
        assert secret not in text, secret
    with duckdb.connect(str(tmp_path / "pushed.duckdb")) as connection:
        (tmp_path / "got").write_bytes(pushed_files(owner.hub)["atlas.duckdb"])
        connection.execute(f"ATTACH '{tmp_path}/got' AS got (READ_ONLY)")
        assert connection.execute("SELECT run_key FROM got.fine_tunes WHERE run_key IS NOT NULL").fetchall() == [
            ("ann/checkpoint-7",)
        ]
        assert ('{"rank":8,"options":[]}',) in connection.execute("SELECT spec::VARCHAR FROM got.builds").fetchall()


@pytest.mark.slow
def test_a_path_of_this_machine_is_refused(owner, own, tmp_path):
    add_adapter(tmp_path / "hidden-place", "run", BASE)
    add(tmp_path / "hidden-place/run", BASE, own.root)
    execute(own.database, "UPDATE adapter_bases SET named = '/home/ann/base'")
    with pytest.raises(AtlasError, match="hold paths of this machine") as caught:
        owner.push(own, with_private=True, with_local=True)
    assert "index remove local:run" in caught.value.hint


@pytest.mark.slow
@pytest.mark.parametrize("keep_record", [False, True])
def test_nothing_of_a_removed_model_travels(owner, own, keep_record):
    remove(SECRET, atlas=own.root, keep_record=keep_record)
    remove("ann/imdb-0", atlas=own.root, keep_record=keep_record)
    assert SECRET.encode() in own.database.read_bytes() + own.listing(BASE).read_bytes()
    owner.push(own, with_records=True)
    text = pushed_text(owner.hub)
    assert b"ann/squad-0" in text
    assert SECRET.encode() not in text
    assert b"ann/imdb-0" not in text


def test_what_a_crawl_noted_of_private_models_does_not_travel(owner, own):
    remove(SECRET, atlas=own.root)
    remove("ann/imdb-0", atlas=own.root)
    listing = Listing(own.listing(BASE))
    bad = BadRow.of({"tags": "x" * 3000, "private": True, "id": "ann/unreleased"}, "no tags")
    open_ = BadRow.of({"tags": None, "private": False, "id": "bob/odd"}, "no tags")
    lines = [{"kind": "bad", "crawl": "", "seen": "2026-01-01T00:00:00+00:00", "key": one.key, "why": one.why,
              "raw": one.raw} for one in (bad, open_)]  # fmt: skip
    lines.append({"kind": "rejected", "id": "ann/tiny-base-secret", "sha": "a" * 40, "why": "its name"})
    assert listing.write([*listing.as_lines(), *lines]) == []
    with own.locked("test"):
        rebuild(own)
    owner.push(own, with_records=True)
    text = pushed_text(owner.hub)
    assert b"bob/odd" in text
    assert b"ann/unreleased" not in text
    assert b"ann/tiny-base-secret" not in text


@pytest.mark.slow
def test_the_same_atlas_is_not_sent_again_although_its_file_is_written_again(owner, own):
    first = owner.push(own, with_private=True)
    assert owner.push(own, with_private=True).sent_files == 0
    assert first.sent_files == first.files + 1
