"""The whole family of a base: children of its copies, its mirrors and its fine-tunes, and the bounds on all that."""

from __future__ import annotations

import pytest

from indexer.errors import AtlasError
from indexer.listing.listing import Listing
from indexer.sources.claims import Claim, classify_path, hub_spelling, relation_to
from indexer.sources.crawl import Family, crawl
from indexer.sources.mirrors import known_mirrors
from indexer.sources.questions import CrawlProgress, CrawlRequest, Question, Step
from tests.crawl.conftest import IDS, REQUEST, claims, crawled
from tests.hubs import BASE, SHORT, RawServer, add_repo, http, requested, served, tags, update_listing, use_endpoint

COPY_4BIT = "unsloth/roberta-bnb-4bit"
DIRECT = CrawlRequest(IDS, descendants=False)


def add_family(store) -> None:
    """A copy in 4 bits, a fine-tune, and what was made of both, and of that."""
    add_repo(store, COPY_4BIT, tags=tags(BASE, "quantized"), downloads=50)
    add_repo(store, "a/qlora", tags=tags(COPY_4BIT, "adapter"))
    add_repo(store, "a/merged-qlora", tags=tags(COPY_4BIT))
    add_repo(store, "a/child", tags=tags(BASE), downloads=9)
    add_repo(store, "a/adapter", tags=tags("a/child", "adapter"))
    add_repo(store, "a/grandchild", tags=tags("a/child"), downloads=8)
    add_repo(store, "a/mix", tags=[*tags("a/grandchild", "merge"), *tags("x/other", "merge")])
    add_repo(store, "a/of-mix", tags=tags("a/mix"))
    add_repo(store, "a/child-4bit", tags=tags("a/child", "quantized"))
    add_repo(store, "a/on-child-4bit", tags=tags("a/child-4bit", "adapter"))
    add_repo(store, "a/child-gguf", tags=[*tags("a/child", "quantized"), "gguf"], downloads=1_000)


def test_everything_that_claims_to_descend_is_found(store, monkeypatch):
    add_family(store)
    with served(store, monkeypatch) as hub:
        found = claims(crawl(REQUEST))
        assert found == {
            "a/qlora": Claim("adapter", f"alias:{COPY_4BIT}", COPY_4BIT),
            "a/merged-qlora": Claim("finetune", f"alias:{COPY_4BIT}", COPY_4BIT),
            "a/child": Claim("finetune", "tag", BASE),
            "a/adapter": Claim("adapter", "tag", "a/child"),
            "a/grandchild": Claim("finetune", "tag", "a/child"),
            "a/mix": Claim("merge", "tag", "a/grandchild"),
            "a/of-mix": Claim("finetune", "tag", "a/mix"),
            "a/on-child-4bit": Claim("adapter", "tag", "a/child-4bit"),
        }
        assert not requested(hub, "gguf")  # nothing is trained from one
        hub.reset_log()
        only = claims(crawl(DIRECT))
        assert set(only) == {"a/qlora", "a/merged-qlora", "a/child"}


def test_models_of_a_relation_that_is_not_wanted_are_passed_through(store, monkeypatch):
    add_family(store)
    found = crawled(store, monkeypatch, CrawlRequest(IDS, relations=("adapter",)))
    assert set(found) == {"a/qlora", "a/adapter", "a/on-child-4bit"}


def test_paths_name_every_step(store, monkeypatch, tmp_path):
    add_family(store)
    listing = Listing(tmp_path / "listing.sqlite")
    with served(store, monkeypatch):
        update_listing(listing, REQUEST)
    paths = {model.id: model.path for model in listing.models()}
    assert paths["a/child"] == (("finetune", "a/child"),)
    assert paths["a/of-mix"] == (
        ("finetune", "a/child"),
        ("finetune", "a/grandchild"),
        ("merge", "a/mix"),
        ("finetune", "a/of-mix"),
    )
    assert paths["a/on-child-4bit"] == (
        ("finetune", "a/child"),
        ("quantized", "a/child-4bit"),
        ("adapter", "a/on-child-4bit"),
    )
    assert paths["a/qlora"] == (("quantized", COPY_4BIT), ("adapter", "a/qlora"))
    assert listing.copies() == {COPY_4BIT: BASE, "a/child-4bit": "a/child"}
    Listing(tmp_path / "again.sqlite").write(listing.as_lines())
    assert {model.id: model.path for model in Listing(tmp_path / "again.sqlite").models()} == paths


def test_depth_and_questions_are_bounded_and_what_is_left_out_is_counted(store, monkeypatch):
    add_family(store)
    with served(store, monkeypatch):
        progress = CrawlProgress()
        found = claims(crawl(CrawlRequest(IDS, max_depth=2), progress))
        assert "a/grandchild" in found
        assert "a/mix" not in found
        assert progress.unasked == 3  # a/merged-qlora, a/grandchild and a/child-4bit
        progress = CrawlProgress()
        found = claims(crawl(CrawlRequest(IDS, max_questions=2), progress))
        # The most downloaded come first, wherever they are.
        assert set(found) == {"a/qlora", "a/merged-qlora", "a/child", "a/adapter", "a/grandchild"}
        assert progress.unasked == 3
        progress = CrawlProgress()
        list(crawl(REQUEST, progress))
        assert progress.unasked == 0


def test_few_quantised_copies_of_one_model_are_asked(store, monkeypatch):
    for number in range(4):
        add_repo(store, f"q/copy{number}", tags=tags(BASE, "quantized"), downloads=number)
        add_repo(store, f"a/on{number}", tags=tags(f"q/copy{number}", "adapter"))
    found = crawled(store, monkeypatch, CrawlRequest(IDS, max_copies=2))
    assert set(found) == {"a/on3", "a/on2"}


def test_circles_end(store, monkeypatch):
    add_repo(store, "a/one", tags=[*tags(BASE), *tags("a/three")])
    add_repo(store, "a/two", tags=[*tags("a/one"), *tags("a/two")])
    add_repo(store, "a/three", tags=tags("a/two"))
    with served(store, monkeypatch) as hub:
        found = claims(crawl(CrawlRequest(IDS, max_depth=20)))
        assert set(found) == {"a/one", "a/two", "a/three"}
        assert len([one for one in requested(hub) if "base_model%3Aa%2F" in one]) == 3


def test_a_path_of_claims_in_a_circle_ends(tmp_path):
    listing = Listing(tmp_path / "listing.sqlite")
    listing.note_base([BASE])
    listing.add({"id": "a/one"}, "finetune", "a/two")
    listing.add({"id": "a/two"}, "finetune", "a/one")
    assert {model.path for model in listing.models()} == {
        (("finetune", "a/two"), ("finetune", "a/one")),
        (("finetune", "a/one"), ("finetune", "a/two")),
    }


def test_a_model_that_only_claims_to_be_a_copy_is_not_asked(monkeypatch):
    liars = [
        {"id": "x/liar", "tags": tags("x/y", "quantized")},
        {"id": "../x", "tags": tags(BASE, "quantized")},
        {"id": "x/private", "tags": tags(BASE, "quantized"), "private": True},
        None,
    ]
    with RawServer(http(liars)) as server:
        use_endpoint(monkeypatch, server.endpoint)
        list(crawl(CrawlRequest((BASE,), relations=("adapter",))))
        assert not [
            one for one in server.requests if "liar" in one or "private" in one.split("\r\n")[0].split("expand")[0]
        ]


def test_hostile_cursors_of_a_child_end_the_crawl(store, monkeypatch):
    add_family(store)
    for number in range(4):
        add_repo(store, f"b/grandchild{number}", tags=tags("a/child"))
    with served(store, monkeypatch, page_size=2) as hub:
        hub.faults.add(
            "filter=base_model:a/child&", headers={"Link": '<https://elsewhere.test/api/models>; rel="next"'}
        )
        pages = []
        with pytest.raises(AtlasError, match="what was made of a/child was not read completely"):
            pages.extend(crawl(REQUEST))


@pytest.mark.parametrize(
    "at", ["base_model:unsloth/roberta-bnb-4bit", "base_model:a/child-4bit", "base_model:a/grandchild"]
)
def test_an_interrupted_crawl_asks_nothing_twice(store, monkeypatch, tmp_path, at):
    add_family(store)
    straight, broken = Listing(tmp_path / "straight.sqlite"), Listing(tmp_path / "broken.sqlite")
    with served(store, monkeypatch) as hub:
        update_listing(straight, REQUEST)
        questions = set(requested(hub, "filter="))
        hub.reset_log()
        hub.faults.add(f"filter={at}&", status=403)
        with pytest.raises(AtlasError):
            update_listing(broken, REQUEST)
        before = requested(hub, "filter=")
        hub.faults.clear()
        hub.reset_log()
        assert update_listing(broken, REQUEST).resumed
        after = requested(hub, "filter=")
    assert {*before, *after} == questions
    assert len(set(before) & set(after)) == 1  # the one that failed
    assert {one.id: one.path for one in broken.models()} == {one.id: one.path for one in straight.models()}


def test_a_narrowed_crawl_asks_about_the_models_of_others_that_are_known(store, monkeypatch, tmp_path):
    add_repo(store, "a/child", tags=tags(BASE))
    listing = Listing(tmp_path / "listing.sqlite")
    with served(store, monkeypatch):
        update_listing(listing, REQUEST)
        add_repo(store, "b/grandchild", tags=tags("a/child"))
        update_listing(listing, CrawlRequest(IDS, author="b"))
    assert {model.id for model in listing.models()} == {"a/child", "b/grandchild"}


def test_a_child_of_a_child_that_leaves_the_hub_is_gone(store, monkeypatch, tmp_path):
    add_family(store)
    listing = Listing(tmp_path / "listing.sqlite")
    with served(store, monkeypatch):
        update_listing(listing, REQUEST)
        (store / "a/adapter.repo.json").write_text('{"tags": []}')
        (store / "a/qlora.repo.json").write_text('{"tags": []}')
        assert update_listing(listing, REQUEST).gone == 2
        # Not asked about is not gone.
        assert update_listing(listing, DIRECT).gone == 0


# ---- mirrors


def test_an_id_whose_slash_became_dashes_is_asked_for(store, monkeypatch):
    """As tools write it that took the id from the name of a folder; of a base without mirrors, too."""
    add_repo(store, "a/tuned", tags=tags(BASE.replace("/", "--")))
    assert crawled(store, monkeypatch, CrawlRequest(IDS, descendants=False)).keys() == {"a/tuned"}
    with served(store, monkeypatch) as hub:
        list(crawl(CrawlRequest((SHORT,))))
        assert not requested(hub, "--")


def test_children_of_mirrors_belong_to_the_base(store, monkeypatch, tmp_path):
    add_repo(store, "b/lora", tags=tags("someone/same-weights", "adapter"))
    add_repo(store, "b/tuned", tags=["base_model:someone--same-weights", "base_model:finetune:someone--same-weights"])
    request = CrawlRequest(IDS, mirrors=("someone/same-weights",))
    assert crawled(store, monkeypatch) == {}
    listing = Listing(tmp_path / "listing.sqlite")
    with served(store, monkeypatch):
        update_listing(listing, request)
    found = {model.id: model for model in listing.models()}
    assert found["b/lora"].claimed_by == found["b/tuned"].claimed_by == "alias:someone/same-weights"
    assert found["b/tuned"].path == (("copy", "someone/same-weights"), ("finetune", "b/tuned"))
    listing.note_mirrors(["someone/same-weights"], BASE)
    assert listing.mirrors() == ("someone/same-weights",)
    assert {one.id: one.path for one in listing.models()} == {one: found[one].path for one in found}


@pytest.mark.parametrize(
    ("base", "mirrors"),
    [
        ("mistralai/Mistral-Small-24B-Base-2501", {"unsloth/Mistral-Small-24B-Base-2501-bnb-4bit"}),
        ("meta-llama/Llama-3.1-8B", {"unsloth/Llama-3.1-8B", "unsloth/Llama-3.1-8B-unsloth-bnb-4bit"}),
        ("meta-llama/Meta-Llama-3-8B", {"unsloth/llama-3-8b", "unsloth/llama-3-8b-bnb-4bit"}),
        ("mistralai/mistral-7b-v0.1", {"unsloth/mistral-7b-bnb-4bit"}),
        ("FacebookAI/roberta-base", set()),
        ("roberta-base", set()),
    ],
)
def test_known_mirrors(base, mirrors):
    found = set(known_mirrors([base]))
    assert mirrors <= found
    assert bool(found) == bool(mirrors)
    assert not any("Meta-Llama-3-8B" in name or "v0.1" in name for name in found)


def test_an_id_spelled_like_a_folder():
    assert hub_spelling("unsloth--Llama-3.2-1B") == "unsloth/Llama-3.2-1B"
    assert hub_spelling("a/b--c") == "a/b--c"
    row = {"tags": ["base_model:adapter:FacebookAI--roberta-base"]}
    assert relation_to(row, IDS, ("adapter",)) == "adapter"
    for path in (
        "FacebookAI--roberta-base",
        "/root/.cache/huggingface/hub/models--FacebookAI--roberta-base/snapshots/0123abcd",
        "models--FacebookAI--roberta-base",
    ):
        assert classify_path(path, "a/b", IDS) == "yes"
    assert classify_path("/x/models--google--gemma-2b/snapshots/0123", "a/b", IDS) == "no"


def test_the_order_does_not_depend_on_when_a_member_is_found():
    steps = {f"a/{number}": Step(BASE, "finetune", number % 7) for number in range(30)}
    steps |= {f"b/{number}": Step(f"a/{number}", "merge", 3) for number in range(30)}

    def asked(finished: set[str], order: list[str]) -> list[str]:
        progress = CrawlProgress(finished, family={name: steps[name] for name in order})
        return [question.asked for question in Family(CrawlRequest((BASE,), max_questions=40), progress).questions()]

    every = asked(set(), list(steps))
    assert len(every) == 40
    half = {Question("children", name).key for name in every[:20]}
    assert asked(half, list(reversed(steps))) == every[20:]
