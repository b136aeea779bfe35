"""A pull: checked as untrusted, put in place at once, read-only until it is adopted; and the cache behind hf://."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from huggingface_hub import constants

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError
from indexer.publish.origin import adopt, read_origin
from indexer.share.pull import pull
from indexer.share.repository import atlases_on_hub
from indexer.upkeep.deep_verification import verify_deeply
from indexer.upkeep.maintenance import represent
from indexer.upkeep.verification import verify
from query import Atlas
from tests.database import execute
from tests.share.conftest import NAME, atlas_content, publish_by_hand, pushed_files, shell_of


def get(ann, tmp_path, name=NAME, folder="got", **options):
    target = AtlasFolder(tmp_path / folder)
    return target, pull(name, target.root, progress=ann.note, **options)


def test_what_arrives_is_what_was_pushed_and_answers_alike(ann, atlas, tmp_path):
    ann.push(atlas)
    got, report = get(ann, tmp_path)
    expected = {path: data for path, data in atlas_content(atlas.root).items() if "/" not in path}
    assert atlas_content(got.root) == expected
    assert (report.models, report.fetched_files, report.bases) == (9, len(expected), ["org/tiny-base"])
    with Atlas(got.root) as there, Atlas(atlas.root) as here:
        assert there.similar("ann/glue-0", 3).to_rows() == here.similar("ann/glue-0", 3).to_rows()
        assert len(there.vectors("org/tiny-base")) == 9
    assert not any(path.is_symlink() for path in got.root.rglob("*"))
    again = pull(NAME, got.root, progress=ann.note)
    assert (again.fetched_files, again.fetched_bytes) == (0, 0)


def test_a_base_file_that_no_base_names_is_not_kept(ann, atlas, tmp_path):
    (own,) = atlas.bases.glob("*.safetensors")
    other = own.with_name(own.name.replace("@", "@0"))
    shutil.copy(own, other)
    ann.push(atlas, with_records=True)
    got, _ = get(ann, tmp_path, with_records=True)
    assert [path.name for path in got.bases.iterdir()] == [own.name]
    assert verify(got) == []
    # One that an earlier pull kept goes too.
    shutil.copy(own, got.bases / other.name)
    pull(NAME, got.root, with_records=True)
    assert [path.name for path in got.bases.iterdir()] == [own.name]


@pytest.mark.slow
def test_three_pulls_at_once_end_with_a_whole_atlas(ann, atlas, tmp_path):
    ann.push(atlas, with_records=True)
    shell = shell_of(ann.hub, tmp_path / "someone")
    commands = [
        *[("index", "pull", NAME, "--atlas", str(tmp_path / "one"), "--with-records")] * 3,
        *[("query", "models", "--atlas", f"hf://{NAME}", "--json")] * 3,
    ]
    with ThreadPoolExecutor(3) as threads:
        ran = list(threads.map(lambda words: shell(*words), commands))
    assert [one.code for one in ran] == [0] * 6, [one.err for one in ran]
    assert verify(AtlasFolder(tmp_path / "one")) == []
    assert len({one.out for one in ran[3:]}) == 1
    assert not (tmp_path / "one" / ".pull").exists()


@pytest.mark.slow
def test_an_older_tag_and_then_what_is_new(ann, atlas, tmp_path):
    ann.push(atlas)
    with atlas.locked("test"):
        represent(atlas, "output")
    ann.push(atlas)
    got, report = get(ann, tmp_path, f"{NAME}@g1")
    assert report.generation == 1
    report = pull(NAME, got.root, progress=ann.note)
    assert report.generation == 2
    assert report.fetched_files < report.files  # the vectors of "input" did not change
    with Atlas(got.root) as opened:
        assert opened.is_published("org/tiny-base", "output")
        assert opened.similar("ann/glue-0", 2, representation="output")


def test_it_is_read_only_until_it_is_adopted_with_its_records(ann, atlas, tmp_path):
    ann.push(atlas, with_records=True, pack_bytes=200_000)
    got, _ = get(ann, tmp_path)
    with pytest.raises(AtlasError, match="was pulled from the Hub and is read-only"), got.locked("index build"):
        pass
    with pytest.raises(AtlasError, match="was pulled without records: a build would read all its 9 models again"):
        adopt(got)
    get(ann, tmp_path, with_records=True)
    assert atlas_content(got.root) == atlas_content(atlas.root)
    assert read_origin(got).has_records
    assert adopt(got).repository == NAME
    with got.locked("index represent"):
        represent(got, "output")
    assert verify(got) == []
    with pytest.raises(AtlasError, match="is an atlas of your own: a pull would replace it"):
        pull(NAME, got.root, progress=ann.note)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["database", "vectors"])
def test_a_byte_that_flips_on_the_way_costs_a_second_try_and_then_the_pull(ann, atlas, tmp_path, what):
    ann.push(atlas)
    path = atlas.database if what == "database" else next(atlas.root.glob("*.faiss"))
    spoilt = bytearray(path.read_bytes())
    spoilt[len(spoilt) // 2] ^= 1
    sha256 = next(one["sha256"] for one in json.loads(pushed_files(ann.hub)["atlas.json"])["files"]
                  if one["path"] == path.name)  # fmt: skip
    fault = ann.hub.faults.add(sha256, role="cdn", method="GET", replace_content=bytes(spoilt), nth=1)
    got, _ = get(ann, tmp_path)
    assert fault.struck == 1
    assert any("arrived damaged" in one for one in ann.said)
    assert got.database.is_file()
    ann.hub.faults.add(sha256, role="cdn", method="GET", replace_content=bytes(spoilt))
    with pytest.raises(AtlasError, match="its checksum does not match"):
        get(ann, tmp_path, folder="other")
    assert not (tmp_path / "other" / "atlas.duckdb").exists()
    ann.hub.faults.clear()
    get(ann, tmp_path, folder="other")


def test_an_untrusted_database_is_refused_before_it_is_in_place(ann, atlas, tmp_path):
    execute(atlas.database, "CREATE MACRO current_setting(name) AS true")
    files = {path.name: path.read_bytes() for path in (atlas.database, *atlas.root.glob("*.faiss"))}
    publish_by_hand(ann.hub, NAME, files)
    with pytest.raises(AtlasError, match="holds a macro 'current_setting'"):
        get(ann, tmp_path)
    assert not (tmp_path / "got" / "atlas.duckdb").exists()


def test_what_cannot_be_pulled_gives_one_line(ann, atlas, tmp_path):
    ann.hub.datasets.create("ann/data")
    for name, sentence in {
        "ann/nothing": "There is no dataset ann/nothing on the Hub",
        "ann/data": "The dataset ann/data is not an atlas",
        "nothing": "is not the name of an atlas on the Hub",
        "ann/../x": "is not the name of an atlas on the Hub",
        f"{NAME}@-x": "is not a valid tag",
    }.items():
        with pytest.raises(AtlasError, match=sentence):
            get(ann, tmp_path, name)
    assert not (tmp_path / "got").exists()
    ann.push(atlas)
    with pytest.raises(AtlasError, match=r"has no revision 'g7'\. Its tags: g1"):
        get(ann, tmp_path, f"{NAME}@g7")
    with pytest.raises(AtlasError, match="was pushed without records"):
        get(ann, tmp_path, with_records=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    with pytest.raises(AtlasError, match=r"is not empty \(thesis.tex\)"):
        get(ann, tmp_path, folder="full")
    with pytest.raises(AtlasError, match="is an atlas of your own"):
        pull(NAME, atlas.root, progress=ann.note)


def test_a_repository_that_was_changed_by_hand_is_noticed_before_anything_is_fetched(ann, atlas, tmp_path):
    ann.push(atlas)
    ann.hub.datasets.commit(NAME, None, "by hand", {"atlas.duckdb": ann.hub.datasets.describe_lfs("0" * 64, 5)}, [])
    ann.hub.reset_log()
    with pytest.raises(AtlasError, match=r"atlas\.duckdb is not the file that its atlas\.json names"):
        get(ann, tmp_path)
    assert not [one for one in ann.hub.requests if one.role == "cdn"]


def test_a_disk_without_room_is_reported_before_anything_is_fetched(ann, atlas, tmp_path, monkeypatch):
    ann.push(atlas)
    monkeypatch.setattr("indexer.share.pull.shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    ann.hub.reset_log()
    with pytest.raises(AtlasError, match="The disk is too small"):
        get(ann, tmp_path)
    assert not [one for one in ann.hub.requests if one.role == "cdn"]


@pytest.mark.slow
def test_an_atlas_is_asked_at_its_address_and_offline(ann, atlas, tmp_path, monkeypatch):
    ann.push(atlas)
    with Atlas(f"hf://{NAME}@g1") as opened, Atlas(atlas.root) as here:
        assert opened.similar("ann/glue-0", 3).to_rows() == here.similar("ann/glue-0", 3).to_rows()
        assert any("fetching" in note for note in opened.notes)
        with pytest.raises(AtlasError, match="is read-only"), opened.folder.locked("query lineage --all"):
            pass
    ann.hub.reset_log()
    with Atlas(f"hf://{NAME}@g1"):
        assert len(ann.hub.requests) == 1
    ann.hub.faults.add("/api/datasets", status=503)
    with Atlas(f"hf://{NAME}@g1") as opened:
        assert any("is taken from the cache" in note for note in opened.notes)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    ann.hub.reset_log()
    with Atlas(f"hf://datasets/{NAME}@g1") as opened:
        assert opened.show("ann/glue-0")
    assert not ann.hub.requests
    with pytest.raises(AtlasError, match="is not in the cache, and HF_HUB_OFFLINE forbids"):
        Atlas("hf://ann/other")


@pytest.mark.slow
def test_a_moved_branch_is_followed(ann, atlas):
    ann.push(atlas)
    with Atlas(f"hf://{NAME}") as opened:
        assert opened.generation == 1
    with atlas.locked("test"):
        represent(atlas, "output")
    ann.push(atlas)
    with Atlas(f"hf://{NAME}") as opened:
        assert opened.generation == 2
    with Atlas(f"hf://{NAME}@g1") as opened:
        assert opened.generation == 1


def test_atlases_are_listed_by_what_their_cards_say(ann, atlas):
    assert atlases_on_hub() == []
    ann.push(atlas)
    rows = atlases_on_hub()
    assert [(row["atlas"], row["bases"], row["models"], row["generation"]) for row in rows] == [
        (NAME, ["org/tiny-base"], 9, 1)
    ]
    evil = b"---\ntags: [vectors-in-the-wild, 'base_model:\\e[2Jx']\natlas: {models: many}\n---\n"
    ann.hub.datasets.create("ann/evil")
    ann.hub.datasets.commit("ann/evil", None, "x", {"README.md": ann.hub.datasets.describe_regular(evil)}, [])
    listed = {row["atlas"]: row for row in atlases_on_hub()}
    assert listed["ann/evil"]["models"] is None
    assert "\x1b" not in str(listed)
    assert [row["atlas"] for row in atlases_on_hub("org/tiny-base")] == [NAME]


@pytest.mark.slow
def test_verify_misses_records_that_were_pulled(ann, atlas, tmp_path):
    ann.push(atlas, with_records=True)
    got = AtlasFolder(tmp_path / "got")
    pull(NAME, got.root, progress=ann.note, with_records=True)
    assert verify(got) == []
    next(got.records.rglob("*.safetensors")).unlink()
    (problem,) = verify(got)
    assert problem.kind == "record"
    assert f"index pull {NAME} --with-records" in problem.problem


@pytest.mark.slow
@pytest.mark.parametrize("with_records", [True, False])
def test_a_strict_check_of_a_pulled_atlas_finds_what_was_altered_and_nothing_else(ann, atlas, tmp_path, with_records):
    ann.push(atlas, with_records=with_records)
    got, _ = get(ann, tmp_path, with_records=with_records)
    assert verify_deeply(got) == []
    execute(got.database, "UPDATE neighbours SET similarity = 0.999 WHERE model_id = 2 AND rank = 1")
    got.checksums.unlink(missing_ok=True)
    assert [one.kind for one in verify_deeply(got)] == ["neighbours"]
