"""Models that name no base: what their names and files say."""

from __future__ import annotations

import pytest

from indexer.sources.claim_filter import is_named_after
from indexer.sources.claims import classify_path
from indexer.sources.crawl import crawl
from indexer.sources.questions import BadRow, ClaimedRow, CrawlProgress, CrawlRequest, Rejected
from tests.crawl.conftest import IDS, claims, crawled
from tests.hubs import BASE, SHORT, add_repo, requested, served, tags

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
        # A folder in the card says nothing for or against, unless it has the base's name.
        ({"config.json": {}, "README.md": SENTENCE.format("/data/vllm/sft_out")}, ("finetune", "name")),
        ({"config.json": {}, "README.md": SENTENCE.format("outputs/checkpoint-500")}, ("finetune", "name")),
        ({"config.json": {}, "README.md": SENTENCE.format("checkpoint-500")}, ("finetune", "name")),
        ({"config.json": {}, "README.md": SENTENCE.format("/data/vllm/roberta-base")}, ("finetune", "card")),
        ({"config.json": {}, "README.md": SENTENCE.format("models/roberta-base")}, ("finetune", "card")),
        ({"config.json": {}, "README.md": SENTENCE.format("klue/roberta-base")}, None),
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
        assert not requested(hub, "/resolve/")


def test_a_tag_with_a_folder_of_the_author_names_no_base(store, monkeypatch):
    for number, folder in enumerate(("/data/vllm/roberta-base", "./outputs/roberta-base", "models/roberta-base")):
        files = {"adapter_config.json": {"base_model_name_or_path": folder}, "README.md": SENTENCE.format(folder)}
        add_repo(store, f"me/roberta-base-{number}", files, tags=["llama-factory", *tags(folder, "adapter")])
    found = crawled(store, monkeypatch, NAMES)
    assert {claim.claimed_by for claim in found.values()} == {"adapter_config"}
    assert len(found) == 3


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
    (bad,) = [one for page in pages for one in page.of(BadRow)]
    assert "500" in bad.why


def test_what_was_looked_into_before_is_not_read_again(store, monkeypatch):
    add_repo(store, "me/roberta-base-a", {"config.json": {"_name_or_path": SHORT}})
    add_repo(store, "me/roberta-base-b", {"config.json": {"_name_or_path": "x/y"}})
    with served(store, monkeypatch) as hub:
        pages = list(crawl(NAMES))
        known = {one.id: (one.commit, None) for page in pages for one in page.of(Rejected)}
        known |= {row.id: (row.row["sha"], row.claim) for page in pages for row in page.of(ClaimedRow)}
        assert set(known) == {"me/roberta-base-a", "me/roberta-base-b"}
        hub.reset_log()
        assert set(claims(crawl(NAMES, CrawlProgress(known=known)))) == {"me/roberta-base-a"}
        assert not requested(hub, "/resolve/")


def test_the_number_of_candidates_is_limited(store, monkeypatch):
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
def test_parsing_a_name_or_path(path, expected):
    assert classify_path(path, "me/own", IDS) == expected


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
    """Of eight and four million characters: what is not linear does not end before the test is ended."""
    is_named_after("me/" + "roberta-" * 1_000_000, IDS)
    classify_path("/" * 2_000_000 + "x" * 2_000_000, "me/x", IDS)
