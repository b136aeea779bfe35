"""ModelScope as a source: what is found of a base, files by ranges, its cache; and what goes wrong."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from dataclasses import replace

import pytest

from indexer import add, build, status
from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError, Failed, ModelError, Skipped, UnknownRevision
from indexer.listing.listing import Listing
from indexer.network.session import install_session
from indexer.sources.addresses import file_system
from indexer.sources.claims import Claim
from indexer.sources.questions import BadRow, ClaimedRow, CrawlProgress, CrawlRequest
from indexer.sources.registry import ModelRef, author_of, is_listed_id, page_of, source_named
from indexer.sources.rows import checked_pages, row_of
from indexer.sources.tree import list_tree
from query import Atlas
from tests.hubs import QUICK
from tests.modelscope_site import LoopbackModelScope
from tests.tiny_hub import BASE
from tests.trees import adapter

SECRET = "ms-s3cret-token"
NAME = BASE.rpartition("/")[2]


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A ModelScope with the base, fine-tunes that name it in three ways, and others named like it."""
    install_session(QUICK)
    root = tmp_path / "modelscope"
    adapter(root / BASE, 99, None)  # the base's own repository: only its name matters
    adapter(root / f"ann/{NAME}-by-field", 1, None)
    (adapter(root / f"ben/{NAME}-by-card", 2, None) / "README.md").write_text(
        f"---\nbase_model: {BASE}\ndatasets:\n- imdb\n---\n# A model\n"
    )
    adapter(root / f"cat/{NAME}-by-settings", 3, f"/mnt/workspace/.cache/modelscope/hub/models/{BASE}")
    adapter(root / f"dan/{NAME}-of-another", 4, "org/other")
    adapter(root / f"eve/{NAME}-silent", 5, None)
    adapter(root / "fay/unlike", 6, BASE)
    with LoopbackModelScope(root, page=3) as running:
        running.facts[f"ann/{NAME}-by-field"] = {"BaseModel": [BASE], "Tags": ["lora"]}
        running.facts[f"dan/{NAME}-of-another"] = {"BaseModel": ["org/other"]}
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", running.endpoint)
        monkeypatch.setattr("indexer.sources.modelscope._ON_A_PAGE", 3)
        yield running


def found(site, ids=(BASE,)):
    pages = checked_pages(source_named("modelscope"), CrawlRequest(ids), CrawlProgress())
    return [row for page in pages for row in page.rows]


def ref(name, revision=None):
    return ModelRef(f"modelscope:{name}", revision)


@pytest.mark.parametrize(("text", "identifier", "revision"), [
    ("modelscope:ann/x", "modelscope:ann/x", None),
    ("modelscope:ann/x@v1", "modelscope:ann/x", "v1"),
    ("https://modelscope.cn/models/ann/x", "modelscope:ann/x", None),
    ("https://www.modelscope.ai/models/ann/x/files", "modelscope:ann/x", None),
])  # fmt: skip
def test_ids_and_addresses(text, identifier, revision):
    reference = ModelRef.parse(text)
    assert (reference.id, reference.revision, reference.source.scheme) == (identifier, revision, "modelscope")
    assert is_listed_id(identifier)
    assert author_of(identifier) == "ann"
    assert page_of(identifier) == "https://modelscope.cn/models/ann/x"


@pytest.mark.parametrize(
    "text", ["modelscope:x", "modelscope:../x", "modelscope:a/b/c", "modelscope:", "modelscope:a/b?c"]
)
def test_other_texts_are_no_ids(text):
    with pytest.raises(AtlasError, match="is neither"):
        ModelRef.parse(text)


def test_what_names_the_base_is_found(site):
    rows = found(site)
    assert all(isinstance(row, ClaimedRow) for row in rows)
    assert [(row.id, *row.claim.parts) for row in sorted(rows, key=lambda row: row.id)] == [
        (f"modelscope:ann/{NAME}-by-field", "adapter", "tag", BASE),
        (f"modelscope:ben/{NAME}-by-card", "adapter", "card", BASE),
        (f"modelscope:cat/{NAME}-by-settings", "adapter", "adapter_config", BASE),
    ]
    row = next(row.row for row in rows if "by-card" in row.id)
    assert (row["downloads"], row["likes"], row["cardData"]["license"]) == (7, 2, "apache-2.0")
    assert row["createdAt"].startswith("2025-10-09")
    assert "private" not in row
    searches = [path for method, path, _ in site.asked if method == "PUT"]
    assert len(searches) == 2  # six models are named like it, three on a page


def test_a_model_is_read_by_ranges_from_where_it_is_stored(site, tmp_path):
    with LoopbackModelScope(site.root) as storage:
        site.storage = storage.endpoint
        reference = ref(f"ben/{NAME}-by-card")
        row = row_of(reference)
        version = reference.source.open(reference, commit=row["sha"])
        whole = (site.root / f"ben/{NAME}-by-card/adapter_model.safetensors").read_bytes()
        before = len(site.asked)
        with closing(version.open("adapter_model.safetensors")) as file:
            assert file.size == len(whole)
            assert len(file.sha256) == 64
            assert file.read(8, 50) == whole[8:50]
            assert bytes(file.run(0, len(whole)).read(100)) == whole[:100]
            assert file.bytes_read == 42 + len(whole)
        assert len(site.asked) == before + 1  # the second range goes to the storage at once
        assert len(storage.asked) == 2
        storage.overrides[f"/models/ben/{NAME}-by-card/resolve/master/adapter_model.safetensors"] = lambda handler: (
            handler.send(403, b"expired")
        )
        site.storage = ""
        with closing(version.open("adapter_model.safetensors")) as file:
            assert file.read(0, 4) == whole[:4]


def test_an_address_that_has_expired_is_asked_for_again(site):
    reference, whole = (
        ref(f"ben/{NAME}-by-card"),
        (site.root / f"ben/{NAME}-by-card/adapter_model.safetensors").read_bytes(),
    )
    with LoopbackModelScope(site.root) as storage:
        site.storage = storage.endpoint
        with closing(reference.source.open(reference).open("adapter_model.safetensors")) as file:
            assert file.read(0, 4) == whole[:4]
            storage.overrides[f"/models/{reference.id.partition(':')[2]}/resolve/master/adapter_model.safetensors"] = (
                lambda handler: handler.send(403, b"expired")
            )
            site.storage = ""
            assert file.read(4, 9) == whole[4:9]


def test_the_version_changes_with_the_files(site):
    reference = ref(f"ann/{NAME}-by-field")
    before = row_of(reference)["sha"]
    assert row_of(reference)["sha"] == row_of(reference, whole=False)["sha"] == before
    adapter(site.root / f"ann/{NAME}-by-field", 77, None)
    assert row_of(reference)["sha"] != before
    with pytest.raises(Failed, match="have changed"):
        reference.source.open(reference, commit=before)
    with pytest.raises(UnknownRevision, match="has no revision 'v9'"):
        row_of(ref(f"ann/{NAME}-by-field", "v9"))
    assert row_of(ref(f"ann/{NAME}-by-field", "v1"))["sha"]
    with pytest.raises(Failed, match="no such model on ModelScope"):
        row_of(ref("ann/none"))


def test_nothing_of_the_hub_is_sent_and_nothing_of_modelscope_elsewhere(site, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_ofTheHub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # which concerns the Hub alone
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", SECRET)
    with LoopbackModelScope(site.root) as storage:
        site.storage = storage.endpoint
        assert len(found(site)) == 3
        everything = json.dumps([*site.asked, *storage.asked])
        assert "hf_" not in everything.replace("hf_hub_id", "")
        assert all(headers["Cookie"] == f"m_session_id={SECRET}" for _, _, headers in site.asked)
        assert storage.asked
        assert SECRET not in json.dumps(storage.asked)
    site.overrides["/api/v1/dolphin/models"] = lambda handler: handler.send(403, SECRET.encode())
    with pytest.raises(AtlasError, match="ModelScope answered HTTP 403") as error:
        found(site)
    assert SECRET not in f"{error.value} {error.value.hint}"
    assert "MODELSCOPE_API_TOKEN" in error.value.hint


def answers(value):
    return lambda handler: handler.send(200, json.dumps(value).encode())


@pytest.mark.parametrize(("answer", "problem"), [
    (answers({"Code": 500, "Message": "busy\x1b[31m"}), "ModelScope answers: busy"),
    (answers([1, 2]), "ModelScope answers"),
    (lambda handler: handler.send(200, b"<html>"), "not JSON"),
    (lambda handler: handler.send(302, b"", {"Location": "https://huggingface.co/api/models"}), "another host"),
    (lambda handler: handler.send(302, b"", {"Location": "http://169.254.169.254/"}), "another host"),
])  # fmt: skip
def test_a_site_that_cannot_be_used_is_one_line(site, answer, problem):
    site.overrides["/api/v1/dolphin/models"] = answer
    with pytest.raises(AtlasError, match=problem) as error:
        found(site)
    assert "\x1b" not in str(error.value)


@pytest.mark.parametrize("data", [None, [], {"Model": None}, {"Model": {"Models": "x", "TotalCount": "9"}},
                                  {"Model": {"Models": [None, {"Path": 1, "Name": "x"}, {"Path": "..", "Name": "x"}]}}])  # fmt: skip
def test_odd_answers_are_empty(site, data):
    site.overrides["/api/v1/dolphin/models"] = answers({"Code": 200, "Data": data})
    assert found(site) == []


def test_files_with_odd_names_and_sizes_are_left_out(site):
    odd = ["../x", "/etc/passwd", "a//b", "a/../b", "bell\a", "x\\y", None, "y" * 600]
    files = [{"Path": name, "Size": 5} for name in odd] + [
        {"Path": "n", "Size": size} for size in (-1, "5", None, 1 << 70)
    ]
    name = f"ann/{NAME}-by-field"
    site.overrides[f"/api/v1/models/{name}/repo/files"] = answers({"Code": 200, "Data": {"Files": [*files, 7, "x"]}})
    assert row_of(ref(name))["siblings"] == []


def test_what_is_read_whole_is_what_its_hash_says(site):
    name = f"ben/{NAME}-by-card"
    reference = ref(name)
    version = reference.source.open(reference)
    with pytest.raises(Skipped, match="longer than the 3 bytes"):
        version.read("adapter_config.json", 3)
    path = site.root / name / "adapter_config.json"
    path.write_bytes(path.read_bytes().replace(b"LORA", b"ARIA"))
    with pytest.raises(Failed, match="not what its Sha256"):
        version.read("adapter_config.json", 1_000)


def test_a_model_that_cannot_be_listed_is_one_bad_row(site):
    name = f"ben/{NAME}-by-card"
    site.overrides[f"/api/v1/models/{name}/repo/files"] = lambda handler: handler.send(403, b"{}")
    rows = found(site)
    assert len([row for row in rows if isinstance(row, ClaimedRow)]) == 2
    assert [row.why for row in rows if isinstance(row, BadRow)] == ["it cannot be read: ModelScope answered HTTP 403"]


@pytest.mark.parametrize("location", ["http://169.254.169.254/latest", "ftp://example.org/x", "http://[::bad"])
def test_a_file_is_not_read_from_a_forbidden_address(site, location):
    name = f"ben/{NAME}-by-card"
    reference = ref(name)
    version = reference.source.open(reference)
    site.overrides[f"/models/{name}/resolve/master/adapter_model.safetensors"] = lambda handler: handler.send(
        302, b"", {"Location": location}
    )
    with closing(version.open("adapter_model.safetensors")) as file, pytest.raises(ModelError):
        file.read(0, 8)


# ---- in an atlas


@pytest.mark.slow
def test_from_build_to_build(site, hub, tmp_path):
    said = []

    def built(*places, **options):
        return build(BASE, sources=places, workers=1, progress=lambda event: said.append(event.message), **options)

    report = built("modelscope")
    assert (report.discovered, report.indexed, report.failed) == (3, 3, 0), report.problem
    assert (built("modelscope").unchanged, built("modelscope").bytes_read) == (3, 0)
    adapter(tmp_path / "mine/m", 50)
    both = built("modelscope", tmp_path / "mine", hub=True)  # a complete crawl of the Hub, and a tree
    assert both.failed == 0
    site.hidden.add(f"ben/{NAME}-by-card")
    with Atlas("atlas") as atlas:
        rows = atlas.rows("SELECT model FROM fine_tunes WHERE deleted_at_hub")
        assert rows == []  # the Hub does not show what is ModelScope's, and that is no news
        (shown,) = atlas.rows(f"SELECT datasets, author FROM models WHERE id = 'modelscope:ben/{NAME}-by-card'")
        assert shown == {"datasets": ["imdb"], "author": "ben"}
        assert len(atlas.similar(f"modelscope:ann/{NAME}-by-field", k=2)) == 2
    assert built(tmp_path / "mine").failed == 0
    built("modelscope")
    with Atlas("atlas") as atlas:
        rows = atlas.rows("SELECT model FROM fine_tunes WHERE deleted_at_hub")
    assert [row["model"] for row in rows] == [f"modelscope:ben/{NAME}-by-card"]
    assert "1 models are not on ModelScope any more; the atlas keeps what it has of them" in said
    listing = Listing(AtlasFolder("atlas").listing(BASE))
    assert {"source:modelscope"} == set(next(one for one in listing.models() if "by-field" in one.id).claims)
    mine, modelscope = status("atlas")["sources"]
    assert (mine["models"], mine["left"]) == (1, 0)
    assert {name: modelscope[name] for name in ("address", "models", "indexed", "left")} == {
        "address": "modelscope", "models": 3, "indexed": 2, "left": 1,
    }  # fmt: skip


def test_a_crawl_of_the_hub_does_not_lose_what_another_source_showed(tmp_path):
    """Also after a rebuild, which restores models without knowing what showed them."""
    listing, request = Listing(tmp_path / "base.sqlite"), CrawlRequest((BASE,))
    row, claim = {"id": "modelscope:ann/x", "sha": "0" * 40}, Claim("adapter", "tag", BASE)
    listing.begin(request)
    listing.update_place("source:modelscope", [(row, claim)], ())
    assert listing.finish(is_complete=True) == 0
    restored = Listing(tmp_path / "restored.sqlite")
    hub_model = replace(listing.models()[0], id="ann/x", row={**row, "id": "ann/x"})
    restored.restore([*listing.models(), hub_model], (BASE,))
    restored.begin(request)
    assert restored.finish(is_complete=True) == 1
    assert restored.gone() == {"ann/x"}
    assert restored.update_place("source:modelscope", (), ["modelscope:ann/x"]) == (0, 1)


@pytest.mark.slow
def test_single_models_are_added_compared_and_identified(site, hub, tmp_path):
    assert build(BASE, limit=2, workers=1).indexed == 2
    assert add(f"modelscope:cat/{NAME}-by-settings", BASE, atlas="atlas").indexed == 1
    with Atlas("atlas") as atlas:
        adapter(site.root / "gil/copy", 3, BASE)
        near = atlas.similar("modelscope:gil/copy", k=1)
        assert (near[0].model, round(near[0].similarity, 3)) == (f"modelscope:cat/{NAME}-by-settings", 1.0)
        (best, *_) = atlas.identify(f"modelscope:ann/{NAME}-by-field")
        assert best.base == BASE
        with pytest.raises(AtlasError, match=r"ModelScope does not have it either\..*set MODELSCOPE_API_TOKEN"):
            atlas.similar("modelscope:ann/none")
        with pytest.raises(AtlasError, match="modelscope:cat"):
            atlas.show(f"modelscope:cat/{NAME}-by-setting")


def test_the_cache_of_the_client_is_a_tree(tmp_path, monkeypatch):
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path))
    for layout, name in (("hub/models", "Qwen2___5-7B-mine"), ("hub", "older___1-lora")):
        adapter(tmp_path / layout / "ann" / name, 1)
    (tmp_path / "hub/._____temp/ann/x").mkdir(parents=True)
    listing = list_tree(file_system("modelscope-cache"))
    assert sorted(model.words[-1] for model in listing.models) == ["Qwen2.5-7B-mine", "older.1-lora"]
    shutil.rmtree(tmp_path / "hub")
    adapter(tmp_path / "models/ann/new___2", 1)
    assert [model.words[-1] for model in list_tree(file_system("modelscope-cache")).models] == ["new.2"]
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "none"))
    with pytest.raises(AtlasError, match="cannot be listed: No such file"):
        file_system("modelscope-cache")
