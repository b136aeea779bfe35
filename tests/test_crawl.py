"""Finding the fine-tunes of a base: what the Hub's listing says, read row by row, over real HTTP."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.crawling.claims import Claim, relation_to, tagged_bases
from indexer.crawling.crawl import crawl
from indexer.crawling.judge import DEEPEST, Judge, is_too_deep
from indexer.crawling.questions import BadRow, ClaimedRow, CrawlRequest, Progress, Question
from indexer.crawling.untagged import is_named_after, path_verdict
from indexer.errors import AtlasError
from tests.hub_ground import (
    BASE,
    SHORT,
    RawServer,
    add_base,
    add_repo,
    asked,
    http,
    served,
    tags,
    use_endpoint,
)

IDS = (BASE, SHORT)
REQUEST = CrawlRequest(IDS)


@pytest.fixture
def store(tmp_path):
    root = tmp_path / "store"
    add_base(root)
    return root


def claims(pages) -> dict[str, Claim]:
    found: dict[str, Claim] = {}
    for page in pages:
        for row in page.rows:
            found.setdefault(row.id, row.claim)
    return found


def crawled(store, monkeypatch, request=REQUEST, **settings) -> dict[str, Claim]:
    with served(store, monkeypatch, **settings):
        return claims(crawl(request))


# What is asked, and believed


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


def test_merges_and_quantised_copies_only_on_request(store, monkeypatch):
    add_repo(store, "a/gguf", tags=tags(BASE, "quantized"))
    add_repo(store, "a/merged", tags=[*tags(BASE, "merge"), *tags("x/other", "merge")])
    assert crawled(store, monkeypatch) == {}
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
        ({"tags": tags("FacebookAI/roberta-base-2")}, None),
        ({}, None),
    ],
)
def test_what_a_row_claims(row, expected):
    assert relation_to(row, IDS, ("finetune", "adapter")) == expected


def test_tags_are_read_once_for_each_base():
    row = {"tags": [*tags("a/b"), *tags("C/D", "merge")]}
    assert tagged_bases(row) == {"a/b": {None, "finetune"}, "c/d": {None, "merge"}}


def test_a_filter_may_answer_with_rows_that_carry_no_tag(monkeypatch):
    rows = [
        {"id": "a/yes", "tags": tags(BASE)},
        {"id": "a/no", "tags": ["bert"]},
        {"id": "a/other", "tags": tags("x/y")},
    ]
    with RawServer(http(rows)) as server:
        use_endpoint(monkeypatch, server.endpoint)
        pages = list(crawl(CrawlRequest((BASE,), relations=("finetune",))))
    assert set(claims(pages)) == {"a/yes"}
    assert [page.unclaimed for page in pages] == [2, 2]
    assert not any(page.bad for page in pages)


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
    (found,) = [one for page in pages for one in page.bad]
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
    verdict = Judge(REQUEST, {})(Question("tag", BASE), row)
    assert isinstance(verdict, BadRow)
    assert len(verdict.raw) < 100


def test_an_old_spelling_of_the_id():
    verdict = Judge(REQUEST, {})(Question("tag", BASE), {"modelId": "a/b", "tags": tags(BASE)})
    assert isinstance(verdict, ClaimedRow)
    assert verdict.row["id"] == "a/b"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(tags(BASE)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ROWS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("id", "tags", "cardData", "siblings", "library_name", "sha"), JSON)
    | {"id": st.just("a/b"), "tags": st.lists(st.sampled_from(tags(BASE)) | JSON, max_size=3)},
)


@settings(max_examples=300, deadline=None)
@given(JSON | ROWS)
def test_no_row_raises(row):
    for question in (Question("tag", BASE), Question("alias", "q/q"), Question("descendants", "p/p")):
        verdict = Judge(REQUEST, {})(question, row)
        assert verdict is None or isinstance(verdict, BadRow | ClaimedRow)
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


# Adapters of quantised copies


def test_adapters_of_quantised_copies_belong_to_the_base(store, monkeypatch):
    add_repo(store, "unsloth/roberta-bnb-4bit", tags=tags(BASE, "quantized"), downloads=50)
    add_repo(store, "x/rare-4bit", tags=tags(BASE, "quantized"), downloads=1)
    add_repo(store, "a/qlora", tags=tags("unsloth/roberta-bnb-4bit", "adapter"))
    add_repo(store, "a/rare-qlora", tags=tags("x/rare-4bit", "adapter"))
    add_repo(store, "a/full", tags=tags("unsloth/roberta-bnb-4bit", "finetune"))
    claim = Claim("adapter", "alias:unsloth/roberta-bnb-4bit", "unsloth/roberta-bnb-4bit")
    assert crawled(store, monkeypatch)["a/qlora"] == claim
    bounded = crawled(store, monkeypatch, CrawlRequest(IDS, max_aliases=1))
    assert bounded == {"a/qlora": claim}
    assert crawled(store, monkeypatch, CrawlRequest(IDS, relations=("finetune",))) == {}


def test_what_only_calls_itself_a_copy_is_none(monkeypatch):
    liars = [
        {"id": "x/liar", "tags": tags("x/y", "quantized")},
        {"id": "../x", "tags": tags(BASE, "quantized")},
        None,
    ]
    with RawServer(http(liars)) as server:
        use_endpoint(monkeypatch, server.endpoint)
        list(crawl(CrawlRequest((BASE,), relations=("adapter",))))
        assert not [one for one in server.requests if "liar" in one]


# Fine-tunes of fine-tunes


def test_descendants_to_a_depth_with_their_parents(store, monkeypatch):
    add_repo(store, "a/child", tags=tags(BASE))
    add_repo(store, "a/grandchild", tags=tags("a/child"))
    add_repo(store, "a/great", tags=tags("a/grandchild"))
    add_repo(store, "a/great-great", tags=tags("a/great"))
    add_repo(store, "a/adapter", tags=tags("a/child", "adapter"))
    assert set(crawled(store, monkeypatch)) == {"a/child"}
    found = crawled(store, monkeypatch, CrawlRequest(IDS, descendants=True, max_depth=2))
    assert {name: claim.parent for name, claim in found.items()} == {
        "a/child": BASE,
        "a/grandchild": "a/child",
        "a/great": "a/grandchild",
    }


def test_circles_end(store, monkeypatch):
    add_repo(store, "a/one", tags=[*tags(BASE), *tags("a/three")])
    add_repo(store, "a/two", tags=[*tags("a/one"), *tags("a/two")])
    add_repo(store, "a/three", tags=tags("a/two"))
    with served(store, monkeypatch) as hub:
        found = claims(crawl(CrawlRequest(IDS, descendants=True, max_depth=50)))
        assert set(found) == {"a/one", "a/two", "a/three"}
        questions = [one for one in asked(hub) if "finetune%3Aa" in one]
        assert len(questions) == 3


def test_only_so_many_parents_are_asked_about_the_popular_ones_first(store, monkeypatch):
    for number in range(6):
        add_repo(store, f"a/child{number}", tags=tags(BASE), downloads=number)
        add_repo(store, f"b/grandchild{number}", tags=tags(f"a/child{number}"))
    found = crawled(store, monkeypatch, CrawlRequest(IDS, descendants=True, max_parents=2))
    assert {name for name in found if name.startswith("b/")} == {"b/grandchild5", "b/grandchild4"}


# Untagged models

SENTENCE = "This model is a fine-tuned version of [{0}](https://huggingface.co/{0}) on the imdb dataset."
NAMES = CrawlRequest(IDS, discover="names")


OTHER = {"_name_or_path": "klue/roberta-base"}
FOLDER = {"_name_or_path": "./results"}
OURS, THEIRS = SENTENCE.format(SHORT), SENTENCE.format("roberta-large")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"adapter_config.json": {"base_model_name_or_path": SHORT}}, ("adapter", "adapter_config")),
        ({"config.json": {"_name_or_path": BASE}}, ("finetune", "config")),
        ({"config.json": {"_name_or_path": "./models/roberta-base/"}}, ("finetune", "config")),
        ({"config.json": {}, "README.md": OURS}, ("finetune", "card")),
        ({"config.json": {}, "README.md": SENTENCE.format(BASE)}, ("finetune", "card")),
        ({"config.json": {}}, ("finetune", "name")),
        ({"config.json": {}, "README.md": "hello"}, ("finetune", "name")),
        ({"config.json": {"_name_or_path": "me/roberta-base-x"}}, ("finetune", "name")),
        # Against: what is trusted more comes first.
        ({"adapter_config.json": {"base_model_name_or_path": "x/y"}, "README.md": OURS}, None),
        ({"config.json": OTHER, "README.md": OURS}, None),
        ({"config.json": {}, "README.md": THEIRS}, None),
        ({"config.json": {"_name_or_path": "distilroberta-base"}}, None),
        ({"config.json": {"_name_or_path": "./results/checkpoint-500"}}, None),
        # A folder says nothing for or against, and the card is asked.
        ({"config.json": FOLDER, "README.md": OURS}, ("finetune", "card")),
        # Files that cannot be read say nothing.
        ({"config.json": "{", "README.md": OURS}, ("finetune", "card")),
        ({"config.json": [1], "README.md": b"\xff" * 99}, ("finetune", "name")),
        ({"config.json": {"_name_or_path": 5}, "README.md": "x" * (1 << 21)}, ("finetune", "name")),
    ],
)
def test_evidence_for_an_untagged_model(store, monkeypatch, files, expected):
    add_repo(store, "me/roberta-base-x", files)
    claim = crawled(store, monkeypatch, NAMES).get("me/roberta-base-x")
    assert (claim and (claim.relation, claim.claimed_by)) == expected


def test_names_that_only_hold_the_name(store, monkeypatch):
    for name in ("xlm-roberta-base-x", "distilroberta-base", "my-roberta-base"):
        add_repo(store, f"me/{name}", {"config.json": {}})
    assert set(crawled(store, monkeypatch, NAMES)) == {"me/my-roberta-base"}


def test_models_tagged_with_another_base_are_not_looked_into(store, monkeypatch):
    add_repo(store, "me/roberta-base-y", {"config.json": {"_name_or_path": SHORT}}, tags=tags("x/other"))
    with served(store, monkeypatch) as hub:
        assert claims(crawl(NAMES)) == {}
        assert not asked(hub, "/resolve/")


def test_gated_candidates_are_judged_by_what_can_be_seen(store, monkeypatch):
    add_repo(store, "me/roberta-base-z", {"config.json": {"_name_or_path": "x/y"}}, gated="auto")
    assert crawled(store, monkeypatch, NAMES)["me/roberta-base-z"].claimed_by == "name"


def test_a_candidate_that_fails_is_a_bad_row_for_now(store, monkeypatch):
    add_repo(store, "me/roberta-base-a", {"config.json": {"_name_or_path": SHORT}})
    add_repo(store, "me/roberta-base-b", {"config.json": {"_name_or_path": SHORT}})
    with served(store, monkeypatch) as hub:
        hub.faults.add("base-a/resolve/", status=500)
        pages = list(crawl(NAMES))
    assert set(claims(pages)) == {"me/roberta-base-b"}
    (bad,) = [one for page in pages for one in page.bad]
    assert "500" in bad.why


def test_what_was_looked_into_before_is_not_read_again(store, monkeypatch):
    add_repo(store, "me/roberta-base-a", {"config.json": {"_name_or_path": SHORT}})
    add_repo(store, "me/roberta-base-b", {"config.json": {"_name_or_path": "x/y"}})
    with served(store, monkeypatch) as hub:
        pages = list(crawl(NAMES))
        known = {one.id: (one.commit, None) for page in pages for one in page.rejected}
        known |= {row.id: (row.row["sha"], row.claim) for page in pages for row in page.rows}
        assert set(known) == {"me/roberta-base-a", "me/roberta-base-b"}
        hub.reset_log()
        assert set(claims(crawl(NAMES, Progress(known=known)))) == {"me/roberta-base-a"}
        assert not asked(hub, "/resolve/")


def test_only_so_many_candidates(store, monkeypatch):
    for number in range(4):
        add_repo(store, f"me/roberta-base-{number}", {"config.json": {"_name_or_path": SHORT}})
    request = CrawlRequest(IDS, discover="names", max_candidates=3)
    with served(store, monkeypatch):
        pages = list(crawl(request))
    assert len(claims(pages)) == 3
    assert pages[-1].is_cut


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (SHORT, "yes"),
        (BASE.upper(), "yes"),
        ("../roberta-base", "yes"),
        ("C:\\models\\roberta-base", "yes"),
        ("/content/drive/roberta-base", "yes"),
        ("models/roberta-base", "yes"),
        ("klue/roberta-base", "no"),
        ("x/y", "no"),
        ("results", "unsure"),
        ("outputs/checkpoint-500", "unsure"),
        ("/home/me/roberta-large", "unsure"),
        ("x/y\x1b", "unsure"),
        ("me/own", None),
        ("own", None),
        ("", None),
        (None, None),
        ("  ", None),
    ],
)
def test_what_a_name_or_path_says(path, expected):
    assert path_verdict(path, "me/own", IDS) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("roberta-base", True),
        ("roberta-base-finetuned-sst2", True),
        ("twitter_RoBERTa-base", True),
        ("xlm-roberta-base", False),
        ("roberta-base-bne-finetuned-sqac", False),
        ("x-japanese-roberta-base", False),
        ("distilroberta-base", False),
        ("roberta-baseline", False),
        ("roberta-large", False),
        ("base-roberta", False),
    ],
)
def test_names(name, expected):
    assert is_named_after(f"me/{name}", IDS) == expected


def test_names_are_read_in_linear_time():
    start = time.monotonic()
    is_named_after("me/" + "roberta-" * 20_000, IDS)
    path_verdict("/" * 100_000 + "x" * 100_000, "me/x", IDS)
    assert time.monotonic() - start < 1


# Paging, and servers that mean ill


def many(store, count: int = 7) -> None:
    for number in range(count):
        moment = f"2024-01-{number + 1:02d}T00:00:00.000Z"
        add_repo(store, f"a/model{number}", tags=tags(BASE), created_at=moment)


ONE = CrawlRequest((BASE,), relations=("finetune",))


def test_every_page_is_asked_for_once_by_creation(store, monkeypatch):
    many(store)
    with served(store, monkeypatch, page_size=3) as hub:
        pages = list(crawl(ONE))
        assert [len(page.rows) for page in pages] == [3, 3, 1, 3, 3, 1]
        assert [page.is_last for page in pages] == [False, False, True] * 2
        assert len(hub.requests) == 6
        assert all("sort=createdAt" in one and "expand=tags" in one for one in asked(hub))


def test_since_stops_paging_and_author_narrows_it(store, monkeypatch):
    many(store)
    with served(store, monkeypatch, page_size=2) as hub:
        for since in (datetime(2024, 1, 6, tzinfo=UTC), datetime(2024, 1, 6)):
            hub.reset_log()
            request = CrawlRequest((BASE,), relations=("finetune",), since=since)
            assert set(claims(crawl(request))) >= {"a/model6", "a/model5"}
            assert len(hub.requests) == 4
        assert claims(crawl(CrawlRequest((BASE,), author="somebody"))) == {}


def hostile(monkeypatch, link: str):
    row = {"id": "a/b", "tags": tags(BASE)}
    server = RawServer(b"")
    server._answers = [http([row], Link=f'<{link.format(server.endpoint)}>; rel="next"')]
    use_endpoint(monkeypatch, server.endpoint)
    return server


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("http://evil.invalid/api/models?cursor=x", "another host"),
        ("http://127.0.0.1:1/api/models?cursor=x", "another host"),
        ("https://evil.invalid\\@127.0.0.1/api/models", "another host"),
        ("//evil.invalid/api/models", "another host"),
        ("file:///etc/passwd", "another host"),
        ("{0}/api/whoami-v2", "not a listing"),
        ("/api/models/a/b", "not a listing"),
        ("/api/models?cursor=same", "repeat"),
    ],
)
def test_a_next_page_that_leads_astray(monkeypatch, link, problem):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    pages = []
    with hostile(monkeypatch, link) as server:
        with pytest.raises(AtlasError, match=problem) as caught:
            pages.extend(iter_into(pages, crawl(ONE)))
        assert len(server.requests) <= 5
    assert pages  # what was on the first page is not lost
    assert claims(pages).keys() == {"a/b"}
    assert not pages[-1].is_last
    assert str(caught.value).isprintable()


def iter_into(pages, source):
    """Keep what came before an error."""
    for page in source:
        pages.append(page)
    return []


def test_a_link_to_itself(monkeypatch):
    with hostile(monkeypatch, "/api/models?cursor=1") as server:
        with pytest.raises(AtlasError, match="repeat"):
            list(crawl(ONE))
        assert len(server.requests) == 2


def test_cursors_without_end_and_without_news(monkeypatch):
    row = {"id": "a/b", "tags": tags(BASE)}
    answers = [http([row], Link=f'</api/models?cursor={number}>; rel="next"') for number in range(50)]
    with RawServer(*answers) as server:
        use_endpoint(monkeypatch, server.endpoint)
        with pytest.raises(AtlasError, match="repeat"):
            list(crawl(ONE))
        assert len(server.requests) < 10


def test_rows_without_end(monkeypatch):
    monkeypatch.setattr("indexer.crawling.crawl.MOST_ROWS", 20)
    answers = [
        http([{"id": f"a/b{number}", "tags": tags(BASE)}], Link=f'</api/models?cursor={number}>; rel="next"')
        for number in range(100)
    ]
    with RawServer(*answers) as server:
        use_endpoint(monkeypatch, server.endpoint)
        with pytest.raises(AtlasError, match="more than 20 rows"):
            list(crawl(ONE))
    monkeypatch.setattr("indexer.crawling.crawl.MOST_PAGES", 5)
    with RawServer(*answers) as server:
        use_endpoint(monkeypatch, server.endpoint)
        with pytest.raises(AtlasError, match="more than 5 pages"):
            list(crawl(ONE))


@pytest.mark.parametrize("answer", [{"error": "x"}, "x", 5, None])
def test_a_page_that_is_no_list(monkeypatch, answer):
    with RawServer(http(answer)) as server:
        use_endpoint(monkeypatch, server.endpoint)
        with pytest.raises(AtlasError, match="not a list"):
            list(crawl(ONE))


def test_a_page_that_is_too_much_for_the_server_is_asked_for_in_parts(store, monkeypatch):
    many(store)
    with served(store, monkeypatch) as hub:
        hub.faults.add("limit=500", status=504)
        assert len(claims(crawl(ONE))) == 7


@pytest.mark.parametrize("status", [500, 403, 429])
def test_a_listing_that_fails_is_an_error_and_not_an_empty_one(store, monkeypatch, status):
    many(store)
    with served(store, monkeypatch, page_size=3) as hub:
        hub.faults.add("cursor=", status=status, retry_after=0 if status != 429 else 99)
        pages: list = []
        with pytest.raises(AtlasError):
            iter_into(pages, crawl(ONE))
        assert len(pages) == 1


def test_a_cursor_that_is_refused_starts_its_question_over_once(store, monkeypatch):
    many(store, 12)
    with served(store, monkeypatch, page_size=2) as hub:
        hub.faults.add("cursor=", nth=5, status=400)  # after five pages, which are no news then
        assert len(claims(crawl(ONE))) == 12
        hub.faults.clear()
        hub.faults.add("cursor=", status=410)
        with pytest.raises(AtlasError):
            list(crawl(ONE))
