"""A source of another package, as docs/guide/sources.md shows one: its models are built, added, compared and asked about."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from zipfile import ZipFile

import pytest

from indexer import add, build, push, verify
from indexer.atlas import AtlasFolder
from indexer.checkpoints.repository import open_repository
from indexer.deltas.stored_base import base_in
from indexer.errors import AtlasError, Failed, ModelError, Skipped
from indexer.sources import registry
from indexer.sources.bases import base_of
from indexer.sources.claims import Claim
from indexer.sources.questions import (
    BadRow,
    ClaimedRow,
    CrawlProgress,
    CrawlRequest,
    Page,
    Question,
    Step,
    UnlistedMember,
)
from indexer.sources.registry import ModelRef, author_of, base_source, is_listed_id, is_model_id, page_of, source_of
from indexer.sources.rows import checked_pages, row_of
from query import Atlas
from tests.conftest import ROOT
from tests.tiny_hub import BASE

ON_PAGE = re.search("```python\n(.*?)```", (ROOT / "docs" / "guide" / "sources.md").read_text(), re.DOTALL)[1]
LINE = re.search(r"^zip = .*$", (ROOT / "docs" / "guide" / "sources.md").read_text(), re.MULTILINE)[0].replace('"', "")
ZIPPED = f"zip:{BASE}"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The folder where the page's package is installed; also in this process."""
    site = tmp_path / "site"
    (site / "my_sources-1.0.dist-info").mkdir(parents=True)
    (site / "my_sources.py").write_text(ON_PAGE)
    lines = [
        f"[{registry.GROUP}]",
        LINE,
        "broken = my_sources:Nothing",
        "hub = my_sources:Archives",
        "local = my_sources:Archives",
    ]
    (site / "my_sources-1.0.dist-info" / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("ARCHIVES", str(tmp_path / "archives"))
    forget()
    yield site
    forget()
    sys.modules.pop("my_sources", None)


def forget():
    registry._others.cache_clear()
    registry._known.cache_clear()


def archived(store, target):
    """The repositories of a store as archives: their tags, with the names of archives, as the comment of each."""
    for settings in store.glob("*/*.repo.json"):
        folder = settings.with_name(settings.name.removesuffix(".repo.json"))
        path = target / folder.parent.name / f"{folder.name}.zip"
        path.parent.mkdir(parents=True, exist_ok=True)
        tags = json.loads(settings.read_text()).get("tags", [])
        with ZipFile(path, "w") as archive:
            for file in sorted(folder.iterdir()):
                archive.write(file, file.name)
            archive.comment = " ".join(tags).replace(f":{BASE}", f":{ZIPPED}").encode()


def test_the_form_of_an_id_decides(package):
    assert ModelRef.parse("zip:ann/one@v1") == ModelRef("zip:ann/one", "v1")
    assert ModelRef.parse("ann/one").source.scheme == "hub"
    assert ModelRef.of_atlas("zip:ann/one").source.title == "the archive"
    assert author_of("zip:ann/one") == "ann"
    assert page_of("zip:ann/one") is None
    assert is_listed_id("zip:ann/one")
    assert not is_listed_id("local:one")
    assert is_model_id("local:one")


@pytest.mark.parametrize(
    "name",
    ["zip:ann/..", "zip:../one", "zip:one", "zip:ann/one two", "zip:ann/one\n", "zip:" + "a" * 500, "tar:ann/one", "hub:ann/one",
     "local:ann/one", "zip:", ":", "zip:ann/one@v", "Zip:ann/one"],
)  # fmt: skip
def test_other_names_are_refused(package, name):
    assert not is_model_id(name)
    with pytest.raises(Skipped):
        ModelRef.of_atlas(name)


def test_a_source_that_cannot_be_imported_is_one_line_where_it_is_needed(package):
    for named in (source_of, ModelRef.parse, base_source):
        with pytest.raises(AtlasError, match=r"The source 'broken' cannot be loaded: AttributeError"):
            named("broken:x")
    with pytest.raises(
        AtlasError,
        match=r"neither a folder here nor a Hub id nor a model of ModelScope nor a model of the archive.*zip:OWNER/NAME",
    ):
        ModelRef.parse("no such name")


def test_without_the_package_its_ids_are_none():
    with pytest.raises(AtlasError, match="neither a folder here nor a Hub id"):
        ModelRef.parse("zip:ann/one")
    with pytest.raises(Skipped, match="not a Hub id"):
        ModelRef.of_atlas("zip:ann/one")


@pytest.mark.parametrize(
    "row",
    [None, [], {}, {"id": "ann/one", "sha": "a" * 40}, {"id": "zip:ann/one"}, {"id": "zip:ann/one", "sha": "../x"},
     {"id": "zip:ann/one", "sha": "a" * 40, "card": "x" * (5 << 20)}, {"id": 3, "sha": "a" * 40}],
)  # fmt: skip
def test_what_a_source_says_is_checked_where_it_comes_in(package, monkeypatch, row):
    monkeypatch.setattr(source_of("zip:ann/one"), "row", lambda reference, whole=True: row)
    with pytest.raises(Failed) as caught:
        row_of(ModelRef("zip:ann/one"))
    assert caught.value.reason == "malformed_row"


@pytest.mark.slow
def test_all_commands_work_with_its_models(package, tiny_store, tmp_path, monkeypatch):
    archived(tiny_store(2), tmp_path / "archives")
    late = tmp_path / "archives" / "ann" / "glue-0.zip"
    late.rename(tmp_path / "late.zip")
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join([str(package), str(ROOT)]), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"
    }  # fmt: skip
    words = ["indexer", "build", "--base", ZIPPED, "--workers", "2", "--atlas", str(tmp_path / "atlas"), "--json"]
    done = subprocess.run([sys.executable, "-m", *words], env=environment, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert (report["indexed"], report["failed"], report["base"]) == (5, 0, ZIPPED)

    def fail(*_):
        raise AssertionError("the Hub was asked")

    monkeypatch.setattr("indexer.network.session.HubTransport.handle_request", fail)
    monkeypatch.chdir(tmp_path)
    said = []
    assert build(ZIPPED, progress=lambda event: said.append(event.message)).unchanged == 5

    (tmp_path / "late.zip").rename(late)
    with Atlas("atlas") as atlas:
        (unindexed, *_) = atlas.similar("zip:ann/glue-0")
        assert unindexed.model == "zip:bob/glue-1"
        assert atlas.lineage("zip:ann/glue-0").edges
        assert add("zip:ann/glue-0", ZIPPED).indexed == 1
        atlas.refresh()
        (indexed, *_) = atlas.similar("zip:ann/glue-0")
        assert indexed.model == unindexed.model
        assert indexed.similarity == pytest.approx(unindexed.similarity, abs=1e-3)
        assert atlas.compare("zip:ann/glue-0", "glue-1").similarity == pytest.approx(indexed.similarity, abs=1e-3)
        assert atlas.lineage("glue-0").base == ZIPPED
        with pytest.raises(AtlasError, match="The archive does not have it either"):
            atlas.similar("zip:ann/none")
    assert not verify("atlas")

    (tmp_path / "archives" / "bob" / "glue-1.zip").unlink()
    build(ZIPPED, progress=lambda event: said.append(event.message))
    assert any("1 models were deleted from the archive" in sentence for sentence in said)
    with pytest.raises(AtlasError, match="This atlas holds models that"):
        push("me/atlas", "atlas")


def test_a_row_that_a_source_claims_and_that_is_not_valid_is_rejected(package, monkeypatch):
    source = source_of("zip:org/base")
    claim = Claim("finetune", "tag", "zip:org/base")
    rows = ({"id": "zip:ann/one", "sha": "1" * 40}, {"id": "ann/one"}, {"id": "local:one"}, {"id": "zip:ann/../x"}, {})
    page = Page(Question("children", "zip:org/base"), tuple(ClaimedRow(row, claim) for row in rows), is_last=True)
    monkeypatch.setattr(source, "list", lambda request, progress: iter([page]))  # the page as it is then
    (checked,) = checked_pages(source, CrawlRequest(("zip:org/base",)), CrawlProgress())
    assert [one.id for one in checked.of(ClaimedRow)] == ["zip:ann/one"]
    assert len(checked.of(BadRow)) == 4

    row = {"id": "zip:ann/one", "sha": "1" * 40}
    wrong = [
        Claim("sibling", "tag", "zip:org/base"),
        Claim("finetune", "folder", "zip:org/base"),
        Claim("finetune", "tag", "a b"),
    ]
    steps = [Step("zip:org/base", "quantized", -1), Step("/etc", "quantized"), Step("zip:org/base", "x")]
    page = replace(page, rows=(
        *(ClaimedRow(row, claim) for claim in wrong), ClaimedRow({"modelId": "zip:ann/one"}, claim),
        *(UnlistedMember("zip:ann/one", step) for step in steps), UnlistedMember("ann/one", Step("zip:org/base", "quantized")),
    ))  # fmt: skip
    (checked,) = checked_pages(source, CrawlRequest(("zip:org/base",)), CrawlProgress())
    assert len(checked.of(BadRow)) == len(page.rows) == 8


def test_a_text_in_a_table_that_looks_like_an_id_of_a_broken_source_is_only_text(package):
    assert not is_model_id("broken:x")
    assert author_of("broken:x") == ""


def test_a_base_is_named_like_a_file(package):
    assert base_source("zip:org/base")[1] == "zip:org/base"
    assert base_in(AtlasFolder("atlas").base("zip:org/base", "1" * 40)) == "zip:org/base"
    with pytest.raises(AtlasError, match="holds '--'"):
        base_source("zip:org/base--old")


def test_agents_have_no_models_of_private_sources_read(package, monkeypatch):
    monkeypatch.setattr(registry, "limits", None)
    registry.limit_reading(None)
    for read in (row_of, open_repository):
        with pytest.raises(AtlasError, match="Models of the archive are not read here"):
            read(ModelRef.parse("zip:ann/one"))


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        (KeyError("no key"), "the archive (source 'zip') failed: KeyError: 'no key'"),
        (OSError(5, "Input/output error"), "the archive (source 'zip') failed: OSError: [Errno 5] Input/output error"),
        (Failed("rate_limited", "the quota is used up"), "the quota is used up"),
        (Skipped("gated", "this account may not read it"), "this account may not read it"),
    ],
)
def test_what_goes_wrong_in_a_source_is_one_sentence(package, monkeypatch, problem, sentence):
    source = source_of("zip:ann/one")

    def fail(*_, **__):
        raise problem
        yield

    for name in ("row", "open"):
        monkeypatch.setattr(source, name, lambda *_, **__: next(fail()))
    monkeypatch.setattr(source, "list", fail)
    reference = ModelRef("zip:ann/one")
    for read in (row_of, open_repository):
        with pytest.raises(ModelError) as caught:
            read(reference)
        assert caught.value.detail == sentence
    with pytest.raises(AtlasError) as stopped:
        list(checked_pages(source, CrawlRequest(("zip:org/base",)), CrawlProgress()))
    assert str(stopped.value).startswith(f"Cannot get what descends from zip:org/base from the archive: {sentence}.")


def test_a_base_is_described_by_its_row_and_its_config(package, tmp_path):
    folder = tmp_path / "archives" / "org"
    folder.mkdir(parents=True)
    for name, config in {"base": '{"model_type": "roberta"}', "list": "[]", "odd": "{"}.items():
        with ZipFile(folder / f"{name}.zip", "w") as archive:
            archive.writestr("config.json", config)
    with ZipFile(folder / "none.zip", "w") as archive:
        archive.writestr("adapter_config.json", "{}")
    facts = base_of(*base_source("zip:org/base"))
    assert (facts.id, facts.config, facts.filenames) == ("zip:org/base", {"model_type": "roberta"}, ("config.json",))
    for name, sentence in {
        "list": "zip:org/list has no readable config.json", "odd": "zip:org/odd has no readable config.json",
        "none": "zip:org/none has no config.json: it is an adapter", "gone": "zip:org/gone cannot be read: there is no archive",
    }.items():  # fmt: skip
        with pytest.raises(AtlasError, match=sentence):
            base_of(*base_source(f"zip:org/{name}"))
