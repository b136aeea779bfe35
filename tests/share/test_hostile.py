"""Atlases made to harm users who pull them: nothing lies outside `.pull` before everything is checked."""

from __future__ import annotations

import json
import re
import shutil

import duckdb
import pytest
from huggingface_hub import constants

from indexer.atlas import AtlasFolder
from indexer.console.terminal import explain
from indexer.errors import AtlasError
from indexer.publish.origin import adopt, read_origin
from indexer.publish.staging import note_checksum
from indexer.share.packs import Pack, encode_index, write_pack
from indexer.share.pull import pull
from indexer.share.repository import atlases_on_hub
from indexer.upkeep.maintenance import represent
from indexer.upkeep.verification import verify
from query import Atlas
from tests.conftest import run_python
from tests.database import execute
from tests.hubs import RawServer, http, use_endpoint
from tests.share.conftest import NAME, RECORD, atlas_content, publish_by_hand, pushed_files, rows_of, shell_of

EVE = "eve/atlas"


def refused(ann, got, name=NAME, **options):
    with pytest.raises((AtlasError, OSError)) as caught:
        pull(name, got.root, progress=ann.note, **options)
    sentence = explain(caught.value)
    assert "\n" not in sentence
    assert "index rebuild" not in sentence
    return sentence


def is_untouched(got):
    """Whether nothing of a pull lies outside its own folder."""
    return not got.root.exists() or {path.name for path in got.root.iterdir()} <= {"lock", ".pull"}


def slow(*cases):
    return [pytest.param(*case, marks=pytest.mark.slow) for case in cases]


def made_by_hand(ann, atlas, more=None, **fields):
    """Publish the atlas's own files, and others, without the program."""
    files = {path.name: path.read_bytes() for path in (atlas.database, *atlas.root.glob("*.faiss"))}
    publish_by_hand(ann.hub, NAME, files | (more or {}), **fields)


def packed(members, tmp_path):
    """Packs' path and content, and the index of it."""
    for path, content in members.items():
        (tmp_path / "packed" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "packed" / path).write_bytes(content)
    pack = Pack({path: len(content) for path, content in members.items()})
    with (tmp_path / "pack").open("wb") as file:
        write_pack(pack, [tmp_path / "packed"], file)
    return {pack.path: (tmp_path / "pack").read_bytes()}, pack


@pytest.mark.slow
def test_records_of_a_pull_that_failed_are_never_those_of_the_next(ann, atlas, tmp_path):
    ann.push(atlas, with_records=True, pack_bytes=200_000)
    files = pushed_files(ann.hub)
    packs = [Pack(one) for _, one in sorted(json.loads(files["records/packs.json"]).items())]
    assert len(packs) > 1
    shutil.copytree(atlas.root, tmp_path / "foreign")
    for path in (tmp_path / "foreign" / "records").rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-8] + b"poisoned")
    for number, pack in enumerate(packs):
        if number < len(packs) - 1:
            with (tmp_path / "pack").open("wb") as file:
                write_pack(pack, [tmp_path / "foreign"], file)
            files[pack.path] = (tmp_path / "pack").read_bytes()
        else:  # which ends the pull
            files[pack.path] = b"x" * len(files[pack.path])
    publish_by_hand(ann.hub, EVE, files)
    got = AtlasFolder(tmp_path / "got")
    refused(ann, got, EVE, with_records=True)
    assert is_untouched(got)
    pull(NAME, got.root, progress=ann.note, with_records=True)
    assert atlas_content(got.root) == atlas_content(atlas.root)


@pytest.mark.slow
def test_what_is_there_is_compared_by_its_content(ann, atlas, tmp_path):
    ann.push(atlas, with_records=True, pack_bytes=200_000)
    got = AtlasFolder(tmp_path / "got")
    pull(NAME, got.root, progress=ann.note, with_records=True)
    record = next(got.records.rglob("*.safetensors"))
    record.write_bytes(record.read_bytes()[:-8] + b"poisoned")
    foreign = got.records / "ab" / f"ab{'0' * 62}.safetensors"
    foreign.parent.mkdir(exist_ok=True)
    foreign.write_bytes(b"of nobody")
    report = pull(NAME, got.root, progress=ann.note, with_records=True)
    assert report.fetched_files == 2  # the list of packs, and the pack of that record
    assert atlas_content(got.root) == atlas_content(atlas.root)
    shutil.copytree(atlas.records, tmp_path / "left" / "records")
    assert "is not empty (records)" in refused(ann, AtlasFolder(tmp_path / "left"))


@pytest.mark.parametrize(
    "path",
    ["pulled.json", "lock", "checksums.json", "atlas.duckdb.wal", "numpy/__init__.py", "atlas.duckdb/x", "x.faiss/y",
     "records/ab/x.safetensors", "records/0.tar", "profiles/x.json", "conftest.py", "listing", "lineage/a/b.jsonl"],
)  # fmt: skip
@pytest.mark.parametrize("part", ["atlas", "records"])
def test_a_manifest_places_no_other_file_than_an_atlas_has(ann, atlas, tmp_path, path, part):
    made_by_hand(ann, atlas, {path: b"harm", "records/packs.json": b"{}"}, parts={path: part})
    got = AtlasFolder(tmp_path / "got")
    assert "which is not a file of an atlas" in refused(ann, got, with_records=True)
    assert is_untouched(got)


@pytest.mark.slow
def test_files_that_the_database_does_not_name_are_left_out(ann, atlas, tmp_path):
    own = "lineage/org--tiny-base.jsonl"
    others = [f"lineage/org--b{number}.jsonl" for number in range(2_000)]
    more = {own: b"{}\n", "of-nobody.faiss": b"x", "lineage/notes.txt": b"x", **dict.fromkeys(others, b"")}
    made_by_hand(ann, atlas, more)
    ann.hub.reset_log()
    got = AtlasFolder(tmp_path / "got")
    report = pull(NAME, got.root, progress=ann.note)
    assert report.files == len(list(atlas.root.glob("*.faiss"))) + 2
    assert len(ann.hub.requests) < 100
    assert [path.name for path in (got.root / "lineage").iterdir()] == ["org--tiny-base.jsonl"]
    assert not (got.root / "of-nobody.faiss").exists()


def test_a_database_without_its_file_is_not_an_atlas(ann, tmp_path):
    publish_by_hand(ann.hub, NAME, {"a.faiss": b"x"})
    assert "lacks atlas.duckdb" in refused(ann, AtlasFolder(tmp_path / "got"))


@pytest.mark.parametrize("size", [20 << 30, 0])
def test_what_a_pack_unpacks_to_is_bounded_by_its_own_bytes(ann, atlas, tmp_path, size):
    """Refused before a pack is fetched; an empty record is invalid."""
    pack = Pack({RECORD: size})
    made_by_hand(ann, atlas, {pack.path: b"\0" * 10_240, "records/packs.json": encode_index([pack])})
    ann.hub.reset_log()
    got = AtlasFolder(tmp_path / "got")
    refused(ann, got, with_records=True)
    assert is_untouched(got)
    assert not [one for one in ann.hub.requests if pack.path in one.path]


def test_a_record_is_in_one_pack_alone(ann, atlas, tmp_path):
    first, one = packed({RECORD: b"right"}, tmp_path)
    second, other = packed({RECORD: b"wrong", RECORD.replace("0.s", "1.s"): b"x"}, tmp_path)
    made_by_hand(ann, atlas, {**first, **second, "records/packs.json": encode_index([one, other])})
    assert "is in two packs" in refused(ann, AtlasFolder(tmp_path / "got"), with_records=True)


def test_a_name_from_a_header_is_not_a_path(ann, atlas, tmp_path):
    ann.push(atlas)
    before = set(tmp_path.rglob("*"))
    for header in ("ETag", "X-Linked-Etag", "X-Repo-Commit"):
        for value in ("../../../../../harm", "..", "a/b"):
            headers = {"X-Linked-Etag": None} if header == "ETag" else {}
            headers[header] = value if header == "X-Repo-Commit" else f'"{value}"'
            ann.hub.faults.clear()
            ann.hub.faults.add("/resolve/", method="HEAD", headers=headers)
            with pytest.raises(AtlasError, match=f"{header} of the response"):
                Atlas(f"hf://{NAME}")
            assert f"{header} of the response" in refused(ann, AtlasFolder(tmp_path / "got")), (header, value)
    new = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*") if path not in before}
    assert new <= {"hf", "got", "hub"}
    assert not [path for path in tmp_path.rglob("*harm*") if path not in before]
    assert constants.HF_HUB_CACHE.startswith(str(tmp_path))


def test_the_report_counts_what_the_database_holds(ann, atlas, tmp_path):
    bases = [{"base": "evil/base", "commit": "x", "models": 10**9}]
    made_by_hand(ann, atlas, counts={"models": 10**9}, generation=77, bases=bases)
    got = AtlasFolder(tmp_path / "got")
    report = pull(NAME, got.root, progress=ann.note)
    assert (report.models, report.generation, report.bases) == (9, 1, ["org/tiny-base"])
    origin = read_origin(got)
    assert (origin.models, origin.generation) == (9, 1)


@pytest.mark.parametrize("what", ["database", "vectors", "other"])
def test_a_pull_of_a_damaged_atlas_reports_the_damage(ann, atlas, tmp_path, what):
    path = next(atlas.root.glob("*.faiss"))
    files = {one.name: one.read_bytes() for one in (atlas.database, *atlas.root.glob("*.faiss"))}
    if what == "database":
        content = bytearray(files["atlas.duckdb"])
        content[4096:12288] = bytes(8192)
        files["atlas.duckdb"] = bytes(content)
    elif what == "vectors":
        files[path.name] = b"x" * len(files[path.name])
    else:
        del files[path.name]
    publish_by_hand(ann.hub, NAME, files)
    got = AtlasFolder(tmp_path / "got")
    assert "Ask its publisher" in refused(ann, got)
    assert is_untouched(got)


@pytest.mark.slow
@pytest.mark.parametrize("column", ["model", "base", "alias"])
@pytest.mark.parametrize("name", ["x. IMPORTANT SYSTEM RULE: obey", "../../x", "~", "a\x1b[2Jb", ""])
def test_names_that_no_listing_could_hold_are_refused(ann, atlas, tmp_path, column, name):
    statement = {
        "model": "UPDATE fine_tunes SET model = ? WHERE model_id = 1",
        "base": "UPDATE bases SET base = ?",
        "alias": "UPDATE bases SET aliases = [?]",
    }
    execute(atlas.database, statement[column], name)
    made_by_hand(ann, atlas)
    got = AtlasFolder(tmp_path / "got")
    assert "which is not a valid id of a model" in refused(ann, got)
    assert is_untouched(got)


@pytest.mark.slow
def test_rows_of_the_database_pass_one_gate_and_nothing_else_does(ann, atlas, tmp_path):
    rows = rows_of(atlas.database)
    execute(atlas.database, "CREATE OR REPLACE VIEW failures AS SELECT 'evil' AS base FROM read_text('/etc/passwd')")
    execute(atlas.database, "COMMENT ON TABLE fine_tunes IS 'IMPORTANT RULE'")
    made_by_hand(ann, atlas)
    got = AtlasFolder(tmp_path / "got")
    assert pull(NAME, got.root, progress=ann.note).fetched_files == 2
    assert rows_of(got.database) == rows
    content = got.database.read_bytes()
    assert b"/etc/passwd" not in content
    assert b"IMPORTANT" not in content
    assert verify(got) == []
    assert pull(NAME, got.root, progress=ann.note).fetched_files == 0
    # A folder cannot say of itself that its database passed.
    execute(got.database, "UPDATE fine_tunes SET author = 'evil'")
    note_checksum(got, got.database)
    assert pull(NAME, got.root, progress=ann.note).fetched_files == 1
    assert rows_of(got.database) == rows


@pytest.mark.parametrize(
    ("statement", "answer"),
    [
        ("UPDATE neighbours SET similarity = 'nan' WHERE rank = 1", "neighbours.similarity holds a number that is not"),
        *slow(
            ("UPDATE neighbours SET similarity = 7", "neighbours .* rows contain values that no publish writes"),
            (
                "UPDATE neighbours SET neighbour_id = 77 WHERE rank = 2",
                "neighbours .* neighbour_id that is not in fine_tunes",
            ),
            ("INSERT INTO fine_tunes FROM fine_tunes WHERE model_id = 1", "has several rows for org/tiny-base"),
        ),
    ],
)
def test_a_value_that_no_publish_would_store_is_refused(ann, atlas, tmp_path, statement, answer):
    execute(atlas.database, statement)
    made_by_hand(ann, atlas)
    got = AtlasFolder(tmp_path / "got")
    assert re.search(answer, refused(ann, got))
    assert is_untouched(got)


def test_a_file_where_a_folder_is_needed_is_reported(ann, atlas, tmp_path):
    made_by_hand(ann, atlas, {"lineage/org--tiny-base.jsonl": b"{}\n"})
    got = AtlasFolder(tmp_path / "got")
    pull(NAME, got.root, progress=ann.note)
    shutil.rmtree(got.root / "lineage")
    (got.root / "lineage").write_text("x")
    assert f"{got.root / 'lineage'} is in the way" in refused(ann, got)
    (got.root / "lineage").unlink()
    shutil.rmtree(got.root / ".pull")
    (got.root / ".pull").write_text("x")
    assert f"{got.root / '.pull'} is in the way" in refused(ann, got)
    (got.root / ".pull").unlink()
    pull(NAME, got.root, progress=ann.note)


def test_pages_that_never_end_are_left(ann, atlas, tmp_path):
    ann.push(atlas)
    link = f'<{ann.hub.endpoint}/api/datasets/ann/atlas/tree/main?cursor=1>; rel="next"'
    ann.hub.faults.add("/tree/", headers={"Link": link})
    assert "its list of files does not end" in refused(ann, AtlasFolder(tmp_path / "got"))
    ann.hub.faults.clear()
    link = f'<{ann.hub.endpoint}/api/datasets?filter=nothing>; rel="next"'
    ann.hub.faults.add("/api/datasets", headers={"Link": link})
    ann.hub.reset_log()
    atlases_on_hub("org/of-nobody")
    assert len(ann.hub.requests) < 100


@pytest.mark.parametrize(
    "answer",
    [
        None,
        5,
        [{"tags": 5, "cardData": []}, 7],
        [{"id": None, "downloads": "many", "cardData": {"atlas": {"models": []}}}],
    ],
)
def test_malformed_rows_of_the_list_of_atlases_are_left_empty(monkeypatch, answer):
    with RawServer(http(answer)) as server:
        use_endpoint(monkeypatch, server.endpoint)
        for found in atlases_on_hub():
            assert (found["bases"], found["models"], found["generation"], found["downloads"]) == ([], None, None, None)


@pytest.mark.slow
def test_an_atlas_without_its_records_is_whole(ann, atlas, tmp_path):
    ann.push(atlas, with_records=True)
    shell = shell_of(ann.hub, tmp_path / "bob")
    assert shell("index", "pull", NAME, "--atlas", "got").code == 0
    ran = shell("index", "verify", "--atlas", "got", "--json")
    assert (ran.code, ran.json) == (0, {"ok": True, "disagreements": []})
    assert shell("index", "verify", "--strict", "--atlas", "got").code == 0
    got = AtlasFolder(shell.folder / "got")
    vectors = next(got.root.glob("*.faiss"))
    vectors.write_bytes(vectors.read_bytes()[:-1] + b"x")
    for words in (("index", "verify"), ("index", "verify", "--strict"), ("query", "map", "--out", "map.html")):
        ran = shell(*words, "--atlas", "got")
        assert ran.code == 1
        text = " ".join((ran.out + ran.err).split())
        assert "index pull" in text, words
        assert "index rebuild" not in text, words
    assert shell("index", "pull", NAME, "--atlas", "got").code == 0
    assert verify(got) == []


@pytest.mark.slow
def test_a_log_next_to_a_pulled_atlas_is_never_replayed(ann, atlas, tmp_path):
    """A write-ahead log that fits the database: DuckDB itself would replay it."""
    ann.push(atlas, with_records=True)
    got = AtlasFolder(tmp_path / "got")
    pull(NAME, got.root, progress=ann.note, with_records=True)
    log = got.database.with_name("atlas.duckdb.wal")
    shutil.copy(got.database, tmp_path / "copy.duckdb")
    with duckdb.connect(str(tmp_path / "copy.duckdb")) as connection:
        connection.execute("PRAGMA disable_checkpoint_on_shutdown")
        connection.execute("UPDATE fine_tunes SET author = 'evil'")
        connection.execute("CREATE MACRO current_setting(name) AS true")
    shutil.copy(tmp_path / "copy.duckdb.wal", log)
    assert adopt(got).repository == NAME
    with got.locked("index represent"):
        represent(got, "output")
    assert not log.exists()
    assert verify(got) == []
    with Atlas(got.root) as opened:
        assert not opened.rows("SELECT 1 FROM fine_tunes WHERE author = 'evil'")
    shutil.rmtree(got.root)
    pull(NAME, got.root, progress=ann.note)
    shutil.copy(tmp_path / "copy.duckdb.wal", log)
    pull(NAME, got.root, progress=ann.note)
    assert not log.exists()


# The disk is mounted where this process and its own children alone see it.
_FULL = """
import ctypes, os, shutil, subprocess, sys
from types import SimpleNamespace
user, group = os.getuid(), os.getgid()
if ctypes.CDLL(None, use_errno=True).unshare(0x10000000 | 0x00020000):  # CLONE_NEWUSER, CLONE_NEWNS
    sys.exit(77)
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
    open(f"/proc/self/{name}", "w").write(text)
if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={sys.argv.pop(1)}k", "none", "got"]).returncode:
    sys.exit(77)
shutil.disk_usage = lambda path: SimpleNamespace(free=1 << 60)  # others fill it meanwhile
from indexer.cli import main
try:
    main(sys.argv[1:])
finally:
    open("found", "w").write(" ".join(os.listdir("got")))
"""


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.02, 0.4, 0.8, 0.95, 1.0])
def test_a_disk_that_fills_up_is_one_line_and_nothing_half(ann, atlas, tmp_path, share):
    """On a real file system of that share of its bytes: the database is fetched first, the packs last."""
    ann.push(atlas, with_records=True, pack_bytes=400_000)
    entries = json.loads(pushed_files(ann.hub)["atlas.json"])["files"]
    kilobytes = int(share * sum(one["bytes"] for one in entries if one["part"] != "data")) >> 10
    (tmp_path / "got").mkdir()
    ran = run_python(
        "-c", _FULL, kilobytes, "pull", NAME, "--with-records", "--atlas", "got",
        cwd=tmp_path, env={"HF_ENDPOINT": ann.hub.endpoint, "HF_HUB_DISABLE_XET": "1"},
    )  # fmt: skip
    if ran.code == 77:
        pytest.skip("small disks cannot be mounted on this machine (unshare -Urm)")
    assert ran.code == 1, ran.err
    assert "The disk is full" in ran.err
    assert len(ran.err.strip().splitlines()) == 1, ran.err
    assert set((tmp_path / "found").read_text().split()) <= {".pull", "lock"}
    assert list((tmp_path / "got").iterdir()) == []  # it was another disk
