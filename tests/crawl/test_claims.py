"""What is asked of the Hub, and which claims are believed: tags, copies, descendants."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.sources.claim_filter import ClaimFilter
from indexer.sources.claims import Claim, relation_to, stated_bases
from indexer.sources.crawl import crawl
from indexer.sources.questions import BadRow, ClaimedRow, CrawlRequest, Question, Rejected, UnlistedMember
from indexer.untrusted import DEEPEST, is_too_deep
from tests.crawl.conftest import IDS, REQUEST, claims, crawled
from tests.hubs import BASE, SHORT, RawServer, add_repo, http, served, tags, use_endpoint


def test_old_and_new_ids_typed_and_untyped(store, monkeypatch):
    add_repo(store, "a/new-finetune", tags=tags(BASE))
    add_repo(store, "a/new-adapter", tags=tags(BASE, "adapter"))
    add_repo(store, "a/old-adapter", tags=[f"base_model:adapter:{SHORT}"])
    add_repo(store, "a/old-untyped", {"config.json": {}}, tags=[f"base_model:{SHORT}"])
    add_repo(store, "a/lora", {"adapter_config.json": {}}, tags=[f"base_model:{BASE}"])
    add_repo(store, "a/large", tags=tags("FacebookAI/roberta-large"))
    add_repo(store, "a/none")
    assert crawled(store, monkeypatch, page_size=2) == {
        "a/new-finetune": Claim("finetune", "tag", BASE),
        "a/new-adapter": Claim("adapter", "tag", BASE),
        "a/old-adapter": Claim("adapter", "tag", BASE),
        "a/old-untyped": Claim("finetune", "tag", BASE),
        "a/lora": Claim("adapter", "tag", BASE),
    }


def test_quantised_copies_only_on_request(store, monkeypatch):
    add_repo(store, "a/gguf", tags=tags(BASE, "quantized"))
    add_repo(store, "a/merged", tags=[*tags(BASE, "merge"), *tags("x/other", "merge")])
    assert crawled(store, monkeypatch) == {"a/merged": Claim("merge", "tag", BASE)}
    assert crawled(store, monkeypatch, CrawlRequest(IDS, relations=("finetune", "adapter"))) == {}
    found = crawled(store, monkeypatch, CrawlRequest(IDS, relations=("merge", "quantized")))
    assert {name: claim.relation for name, claim in found.items()} == {
        "a/gguf": "quantized",
        "a/merged": "merge",
    }
    # A merge names several bases, and is found from each of them.
    other = CrawlRequest(("x/other",), relations=("merge",))
    assert crawled(store, monkeypatch, other) == {"a/merged": Claim("merge", "tag", "x/other")}


def test_the_base_is_not_its_own_fine_tune(store, monkeypatch):
    add_repo(store, BASE, {"config.json": {}}, old_ids=[SHORT], tags=tags(BASE))
    assert crawled(store, monkeypatch) == {}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"tags": tags(BASE, "finetune") + tags(BASE, "adapter")}, "adapter"),
        ({"tags": tags(BASE, "merge") + tags(BASE, "finetune")}, "finetune"),
        ({"tags": tags(BASE, "merge") + tags(BASE, "quantized")}, None),
        ({"tags": [f"base_model:finetune:{BASE.lower()}"]}, "finetune"),
        ({"tags": [f"base_model:{BASE}"], "library_name": "peft"}, "adapter"),
        ({"tags": [f"base_model:{BASE}"], "siblings": [{"rfilename": "style v2.safetensors"}]}, "adapter"),
        ({"tags": [f"base_model:{BASE}"], "siblings": [{"rfilename": "model.safetensors"}]}, "finetune"),
        (
            {
                "tags": [f"base_model:{BASE}"],
                "siblings": [{"rfilename": "a.safetensors"}, {"rfilename": "config.json"}],
            },
            "finetune",
        ),
        ({"tags": [f"base_model:{BASE}", "lora"], "library_name": "diffusers"}, "adapter"),
        ({"tags": [f"base_model:{BASE}"], "siblings": [{"rfilename": "adapter_config.json"}]}, "adapter"),
        ({"tags": [f"base_model:{BASE}"], "siblings": ["adapter_config.json"]}, "adapter"),
        ({"tags": [f"base_model:{BASE}"], "siblings": "adapter_config.json"}, "finetune"),
        ({"tags": [], "cardData": {"base_model": SHORT}}, "finetune"),
        ({"tags": None, "cardData": {"base_model": [None, 5, BASE]}}, "finetune"),
        ({"cardData": {"base_model": BASE, "base_model_relation": "adapter"}}, "adapter"),
        ({"tags": tags(BASE, "quantized"), "cardData": {"base_model": BASE}}, None),
        ({"tags": ["base_model:", "base_model:adapter:", "base_model::x", 5, None, {}, "x" * 10_000]}, None),
        ({"tags": ["base_model:finetune:x/FacebookAI/roberta-base"]}, None),
        ({"tags": ["base_model:export:" + BASE]}, None),
        ({"tags": ["base_model:export:" + BASE, "base_model:" + BASE]}, "finetune"),
        ({"tags": {"base_model": BASE}}, None),
        ({"tags": ["bert"], "baseModels": {"relation": "adapter", "models": [{"_id": "x", "id": BASE}]}}, "adapter"),
        ({"baseModels": {"relation": "merge", "models": [{"id": "x/y"}, {"id": BASE.upper()}]}}, None),
        ({"baseModels": {"relation": None, "models": [{"id": BASE}]}, "library_name": "peft"}, "adapter"),
        # What the tags say of a base counts.
        ({"tags": tags(BASE, "quantized"), "baseModels": {"relation": "finetune", "models": [{"id": BASE}]}}, None),
        ({"tags": [f"base_model:{BASE}"], "baseModels": {"relation": "adapter", "models": [{"id": BASE}]}}, "adapter"),
        ({"baseModels": {"relation": "x" * 9999, "models": [{"id": BASE}]}}, "finetune"),
        ({"baseModels": {"relation": ["finetune"], "models": [{"id": "../" + BASE}]}}, None),
        ({"baseModels": {"relation": "finetune", "models": {"id": BASE}}}, None),
        ({"baseModels": {"relation": "finetune", "models": [BASE, None, 5, {"id": 5}]}}, None),
        ({"baseModels": {"relation": "finetune", "models": [{"id": "x/y"}] * 100 + [{"id": BASE}]}}, None),
        ({"baseModels": [BASE]}, None),
        ({"tags": tags("FacebookAI/roberta-base-2")}, None),
        ({}, None),
    ],
)
def test_what_a_row_claims(row, expected):
    assert relation_to(row, IDS, ("finetune", "adapter")) == expected


def test_tags_are_read_once_for_each_base():
    row = {"tags": [*tags("a/b"), *tags("C/D", "merge")]}
    assert stated_bases(row) == {"a/b": {None, "finetune"}, "c/d": {None, "merge"}}


def test_a_filter_may_answer_with_rows_that_carry_no_tag(monkeypatch):
    rows = [
        {"id": "a/yes", "tags": tags(BASE)},
        {"id": "a/no", "tags": ["bert"]},
        {"id": "a/other", "tags": tags("x/y")},
    ]
    with RawServer(http(rows)) as server:
        use_endpoint(monkeypatch, server.endpoint)
        pages = list(crawl(CrawlRequest((BASE,), relations=("finetune",), descendants=False)))
    assert set(claims(pages)) == {"a/yes"}
    assert len(pages) == 3
    assert not any(page.of(BadRow) or page.of(Rejected) for page in pages)


# Rows that cannot be used

BAD = [
    None,
    5,
    "row",
    [],
    [{"id": "a/b"}],
    {},
    {"id": None, "tags": tags(BASE)},
    {"id": 7, "tags": tags(BASE)},
    {"id": "../../etc/passwd", "tags": tags(BASE)},
    {"id": "a/b/c", "tags": tags(BASE)},
    {"id": "a/\x1b[31mred", "tags": tags(BASE)},
    {"id": "a/\ud800", "tags": tags(BASE)},
    {"id": "x" * 10_000, "tags": tags(BASE)},
    {"id": "a/no-tags"},
    {"id": "a/odd-tags", "tags": "base_model:roberta-base"},
    {"id": "a/deep", "tags": tags(BASE), "cardData": json.loads("[" * 150 + "]" * 150)},
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: str(bad)[:30])
def test_a_bad_row_is_recorded_and_the_crawl_goes_on(store, monkeypatch, bad):
    for number in range(5):
        add_repo(store, f"a/good{number}", tags=tags(BASE))
    with served(store, monkeypatch, page_size=2) as hub:
        hub.faults.add(r"filter=base_model:finetune:FacebookAI", nth=2, splice_row=bad, splice_at=1)
        pages = list(crawl(REQUEST))
    assert set(claims(pages)) == {f"a/good{number}" for number in range(5)}
    (found,) = [one for page in pages for one in page.of(BadRow)]
    assert found.raw.isascii()
    assert len(found.raw) <= 2_000
    assert found.why
    assert found.as_row().keys() == {"why", "raw", "seen"}


def test_odd_fields_are_no_reason_to_lose_a_row(store, monkeypatch):
    # Each of these ends HfApi.list_models.
    odd = {
        "safetensors": {"parameters": {"F32": 5}},
        "cardData": {"self": 1, "model-index": "x"},
        "lastModified": "2022-02-09",
        "createdAt": 5,
        "siblings": None,
        "config": [],
        "downloads": "many",
    }
    with served(store, monkeypatch) as hub:
        for name, value in odd.items():
            row = {"id": f"a/{name}", "tags": tags(BASE), name: value}
            hub.faults.add(r"filter=base_model:finetune:FacebookAI", splice_row=row)
            pages = list(crawl(REQUEST))
            assert set(claims(pages)) == {f"a/{name}"}
            hub.faults.clear()


def test_an_enormous_row_is_a_bad_row():
    row = {"id": "a/b", "tags": tags(BASE), "cardData": {"x": "y" * (5 << 20)}}
    verdict = ClaimFilter(REQUEST, {})(Question("tag", BASE), row)
    assert isinstance(verdict, BadRow)
    assert len(verdict.raw) < 100


def test_an_old_spelling_of_the_id():
    verdict = ClaimFilter(REQUEST, {})(Question("tag", BASE), {"modelId": "a/b", "tags": tags(BASE)})
    assert isinstance(verdict, ClaimedRow)
    assert verdict.row["id"] == "a/b"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(tags(BASE)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ROWS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("id", "tags", "baseModels", "cardData", "siblings", "library_name", "sha"), JSON)
    | {"id": st.just("a/b"), "tags": st.lists(st.sampled_from(tags(BASE)) | JSON, max_size=3)},
)


@settings(max_examples=300, deadline=None)
@given(JSON | ROWS)
def test_no_row_raises(row):
    for question in (Question("tag", BASE), Question("children", "q/q"), Question("children", "q--q")):
        verdict = ClaimFilter(REQUEST, {}, {"q/q"})(question, row)
        assert verdict is None or isinstance(verdict, BadRow | ClaimedRow | UnlistedMember)
        if isinstance(verdict, ClaimedRow):
            assert verdict.claim.relation in REQUEST.relations


def test_depth_is_measured_without_recursion():
    value: list = []
    for _ in range(100_000):
        value = [value]
    assert is_too_deep(value)
    shallow: dict = {"a": [{"b": [1]}] * 1000}
    assert not is_too_deep(shallow)
    assert DEEPEST < 500


def test_a_path_in_the_spelling_of_modelscope_names_the_base():
    from indexer.listing.parents import Parents
    from indexer.sources.claims import NO, YES, classify_path

    base = "Qwen/Qwen2.5-7B"
    for path in ("Qwen/Qwen2___5-7B", "/root/.cache/modelscope/hub/Qwen/Qwen2___5-7B", "qwen2___5-7b"):
        assert classify_path(path, "a/adapter", (base,)) == YES, path
    assert classify_path("Qwen/Qwen2___5-14B", "a/adapter", (base,)) == NO
    assert classify_path("a/b___c", "a/adapter", ("a/b___c",)) == YES
    asked = []
    parents = Parents((base,), (), lambda name: asked.append(name))
    parents.of_row({"id": "A/Mine", "config": {"peft": {"base_model_name_or_path": "Qwen/Qwen2___5-14B"}}})
    assert asked == ["Qwen/Qwen2.5-14B"]
