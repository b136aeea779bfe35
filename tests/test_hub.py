"""What one asks the Hub about single models, over real HTTP."""

from __future__ import annotations

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import BadRequestError

from indexer.errors import AtlasError, Failed, Skipped, UnknownRevision
from indexer.network.hub import conversion_revision, fetch_json, model_row, unknown_model
from indexer.network.hub_requests import get_json, parse_json, with_parameter
from indexer.sources.hub_base import resolve_base
from tests.hubs import (
    BASE,
    QUICK,
    SHORT,
    RawServer,
    add_base,
    add_repo,
    http,
    requested,
    served,
    tags,
    use_endpoint,
)

TITLE = "Adding `safetensors` variant of this model"


@pytest.fixture
def store(tmp_path):
    root = tmp_path / "store"
    add_base(root)
    add_repo(root, "me/tuned", {"config.json": {}, "pytorch_model.bin": b"PK" * 9}, tags=tags(BASE))
    return root


@pytest.fixture
def hub(store, monkeypatch):
    with served(store, monkeypatch) as running:
        yield running


# Bases


@pytest.mark.parametrize("name", [BASE, SHORT])
def test_a_base_is_found_by_either_id(hub, name):
    facts = resolve_base(name)
    assert facts.id == BASE
    assert facts.aliases == (SHORT,)
    assert facts.ids == (BASE, SHORT)
    assert facts.config == {"model_type": "roberta"}
    assert facts.commit == hub.store.repository(BASE).revision().sha
    assert facts.filenames == ("config.json",)
    assert not facts.row["gated"]


def test_a_namesake_is_not_an_alias(store, monkeypatch):
    add_repo(store, "you/stranger", {"config.json": {}}, old_ids=["tuned"])
    with served(store, monkeypatch):
        assert resolve_base("me/tuned").aliases == ()


def test_an_old_id_with_an_owner_is_an_alias_when_it_was_asked_for(store, monkeypatch):
    add_repo(store, "meta-llama/Llama-3.1-8B", {"config.json": {}}, old_ids=["meta-llama/Meta-Llama-3.1-8B"])
    with served(store, monkeypatch):
        assert resolve_base("meta-llama/Meta-Llama-3.1-8B").aliases == ("meta-llama/Meta-Llama-3.1-8B",)
        assert resolve_base("meta-llama/Llama-3.1-8B").aliases == ("meta-llama/Meta-Llama-3.1-8B",)


@pytest.mark.parametrize(
    ("name", "near"), [("FacebookAI/roberta-bse", BASE), ("roberta_base", BASE), ("me/tunde", "me/tuned")]
)
def test_an_unknown_base_names_the_nearest(hub, name, near):
    with pytest.raises(AtlasError) as caught:
        resolve_base(name)
    assert name in caught.value.message
    assert near in caught.value.hint


def test_an_unknown_base_like_no_other(hub):
    with pytest.raises(AtlasError) as caught:
        resolve_base("qqqq/zzzzzzzz")
    assert "Did you mean" not in caught.value.hint


def test_no_nearest_ids_if_the_hub_does_not_answer(hub):
    hub.faults.add("search=", status=500)
    assert unknown_model("roberta-bse").hint.startswith("Check the spelling.")


@pytest.mark.parametrize(
    "name", ["", "../up", "a/b/c", "a b", "a/b\x1b[31m", "-x/y", "a" * 300, "a--b/c", "http://x/y"]
)
def test_only_ids_are_asked_for(hub, name):
    with pytest.raises(AtlasError) as caught:
        resolve_base(name)
    assert str(caught.value).isprintable()
    assert hub.requests == []


def test_the_error_of_a_gated_base_gives_the_next_step(store, monkeypatch):
    add_repo(store, "meta/gated", {"config.json": {"model_type": "llama"}}, gated="manual")
    with served(store, monkeypatch, tokens={"hf_good": {"meta/gated"}}):
        with pytest.raises(AtlasError) as caught:
            resolve_base("meta/gated")
        assert "gated" in caught.value.message
        assert "hf auth login" in caught.value.hint
        monkeypatch.setenv("HF_TOKEN", "hf_good")
        facts = resolve_base("meta/gated")
        assert facts.row["gated"]
        assert facts.config == {"model_type": "llama"}


@pytest.mark.parametrize("config", [None, "{", "[1]", '"x"', "[" * 100_000])
def test_a_base_needs_a_config(store, monkeypatch, config):
    add_repo(store, "me/bare", {} if config is None else {"config.json": config})
    with served(store, monkeypatch), pytest.raises(AtlasError, match=r"config\.json"):
        resolve_base("me/bare")


@pytest.mark.parametrize(
    "answer", [[], "x", None, {}, {"id": BASE}, {"id": "../x", "sha": "a" * 40}, {"id": BASE, "sha": 5}]
)
def test_an_answer_that_describes_no_model(monkeypatch, answer):
    with RawServer(http(answer)) as server:
        use_endpoint(monkeypatch, server.endpoint)
        with pytest.raises(AtlasError):
            resolve_base(BASE)


def test_a_base_that_the_hub_cannot_tell_of_just_now(hub):
    hub.faults.add("/api/models/FacebookAI", status=503)
    with pytest.raises(AtlasError) as caught:
        resolve_base(BASE)
    assert "503" in caught.value.message
    assert "later" in caught.value.hint


def test_an_alias_is_not_lost_to_a_server_error(hub):
    hub.faults.add("^/api/models/roberta-base", first=2, status=502)
    assert resolve_base(BASE).aliases == (SHORT,)
    hub.faults.clear()
    hub.faults.add("^/api/models/roberta-base", status=502)
    with pytest.raises(AtlasError):
        resolve_base(BASE)


# Rows


def test_a_model_by_its_old_id_at_a_revision(store, monkeypatch):
    sha = "f" * 40
    add_repo(
        store,
        "you/new-name",
        {"config.json": {}, "model.safetensors": b"x" * 100},
        old_ids=["me/old-name"],
        revisions={"v1": {"sha": sha, "folder": "you/new-name.v1"}},
    )
    (store / "you/new-name.v1").mkdir()
    (store / "you/new-name.v1/other.json").write_text("{}")
    with served(store, monkeypatch):
        row = model_row("me/old-name")
        assert row["id"] == "you/new-name"
        weights = next(one for one in row["siblings"] if one["rfilename"] == "model.safetensors")
        assert weights["size"] == 100
        assert len(weights["lfs"]["sha256"]) == 64
        at = model_row("you/new-name", "v1")
        assert at["sha"] == sha
        assert [one["rfilename"] for one in at["siblings"]] == ["other.json"]
        with pytest.raises(UnknownRevision, match="you/new-name has no revision v2") as caught:
            model_row("you/new-name", "v2")
        assert caught.value.reason == "not_found"


def test_a_revision_with_slashes_is_one_part_of_the_path(hub):
    with pytest.raises(Failed):
        model_row("me/tuned", "refs/pr/../../../x")
    assert requested(hub, "/revision/refs%2Fpr%2F..%2F..%2F..%2Fx?")


def test_a_missing_model(hub):
    for name in ("me/nothing", "nobody/nothing"):
        with pytest.raises(Failed) as caught:
            model_row(name)
        assert caught.value.reason == "not_found"
    with pytest.raises(Skipped):
        model_row("../../etc/passwd")


# JSON


def test_json_files(store, monkeypatch):
    add_repo(
        store,
        "me/files",
        {"a.json": {"x": [1]}, "b.json": "{'", "c.json": '{"x": NaN}', "big.json": " " * (9 << 20)},
    )
    with served(store, monkeypatch):
        assert fetch_json("me/files", "a.json", "main") == {"x": [1]}
        assert fetch_json("me/files", "c.json", "main")["x"] != 0
        for name, reason in {
            "b.json": "malformed_row",
            "big.json": "malformed",
            "none.json": "not_found",
        }.items():
            with pytest.raises((Failed, Skipped)) as caught:
                fetch_json("me/files", name, "main")
            assert caught.value.reason == reason


def test_garbled_json_is_asked_for_again(hub):
    hub.faults.add("^/api/models/me/tuned", first=1, malformed_json=True)
    assert get_json("/api/models/me/tuned").value["id"] == "me/tuned"
    assert len(requested(hub)) == 2


def test_a_refusal_is_not_garbled_json(hub):
    hub.faults.add("^/api/models/me/tuned", status=400)
    with pytest.raises(BadRequestError):
        get_json("/api/models/me/tuned")
    assert len(requested(hub, "tuned")) == 1


def test_json_that_stays_garbled(monkeypatch):
    with RawServer(http(b"<html>")) as server:
        use_endpoint(monkeypatch, server.endpoint)
        with pytest.raises(Failed, match="not JSON") as caught:
            get_json("/api/models/me/tuned")
        assert caught.value.reason == "server_error"
        assert len(server.requests) == 1 + QUICK.retries


def test_odd_json_costs_nothing_else():
    assert parse_json(b'{"a": ' + b"9" * 9000 + b', "b": 5}')["b"] == 5
    with pytest.raises(ValueError, match="deep"):
        parse_json(b"[" * 200_000)
    with pytest.raises(ValueError):  # noqa: PT011
        parse_json(b"\xff\xfe")


def test_redirects_that_go_nowhere(monkeypatch):
    with RawServer(http(b"", "307 Temporary Redirect", Location="/api/models/x")) as server:
        use_endpoint(monkeypatch, server.endpoint)
        with pytest.raises(Failed, match="redirects"):
            get_json("/api/models/x")
        assert len(server.requests) < 10
    for target in ("http://[", "//other.invalid/x", "file:///etc/passwd", "http://127.0.0.1:1/"):
        with RawServer(http(b"", "307 Temporary Redirect", Location=target)) as server:
            use_endpoint(monkeypatch, server.endpoint)
            with pytest.raises(Failed, match="another host"):
                get_json("/api/models/x")


def test_a_mirror_that_passes_on_the_hubs_own_links(monkeypatch):
    link = f'<{constants.HUGGINGFACE_CO_URL_HOME}api/models?cursor=abc>; rel="next"'
    with RawServer(http([], Link=link)) as server:
        use_endpoint(monkeypatch, server.endpoint)
        assert get_json("/api/models").next_link == f"{server.endpoint}/api/models?cursor=abc"


def test_setting_a_parameter():
    assert with_parameter("http://h/p?a=1&limit=5&a=2", "limit", "9") == "http://h/p?a=1&a=2&limit=9"


# Conversions


def converted(store, **more):
    described = {"folder": "me/tuned.pr1", "author": "SFconvertbot", "title": TITLE, **more}
    add_repo(store, "me/tuned", tags=tags(BASE), revisions={"refs/pr/1": described})
    (store / "me/tuned.pr1").mkdir(exist_ok=True)
    (store / "me/tuned.pr1/model.safetensors").write_bytes(b"x")


def test_the_converters_pull_request_is_found(store, monkeypatch):
    converted(store)
    with served(store, monkeypatch):
        assert conversion_revision("me/tuned") == "refs/pr/1"


@pytest.mark.parametrize(
    "more",
    [
        {"author": "mallory"},
        {"author": "sfconvertbot"},
        {"title": "Better weights"},
        {"status": "closed"},
        {"status": "merged"},
    ],
)
def test_no_other_pull_request_is(store, monkeypatch, more):
    converted(store, **more)
    with served(store, monkeypatch):
        assert conversion_revision("me/tuned") is None


def test_a_filter_that_is_ignored_changes_nothing(monkeypatch):
    def discussion(**more):
        return {
            "num": 3,
            "title": TITLE,
            "status": "open",
            "isPullRequest": True,
            "author": {"name": "SFconvertbot"},
            **more,
        }

    odd = [
        None,
        5,
        {},
        discussion(author=None),
        discussion(num="3"),
        discussion(num=True),
        discussion(num=-1),
        discussion(isPullRequest=False),
    ]
    page = {"discussions": [*odd, discussion(author={"name": "mallory"}, num=9)], "count": 10**9, "start": 0}
    none = {"discussions": []}
    # Whatever was let through would be believed: its commits fit.
    with RawServer(http(page), http(none), http([{"id": "b" * 40}]), http({"sha": "b" * 40})) as server:
        use_endpoint(monkeypatch, server.endpoint)
        assert conversion_revision("me/tuned") is None
        assert len(server.requests) == 2
    with RawServer(http(page)) as server:
        use_endpoint(monkeypatch, server.endpoint)
        assert conversion_revision("me/tuned") is None
        assert len(server.requests) <= 10  # whatever the count says


def test_a_conversion_of_earlier_weights_is_left_alone(monkeypatch):
    conversion = {
        "num": 3,
        "title": TITLE,
        "status": "open",
        "isPullRequest": True,
        "author": {"name": "SFconvertbot"},
    }
    discussions = {"discussions": [conversion], "count": 1, "start": 0}
    before = [{"id": "a" * 40}, {"id": "b" * 40}]  # the pull request's commit, and what it was built on
    for main, expected in (("b" * 40, "refs/pr/3"), ("c" * 40, None)):
        with RawServer(http(discussions), http(before), http({"id": "me/tuned", "sha": main})) as server:
            use_endpoint(monkeypatch, server.endpoint)
            assert conversion_revision("me/tuned") == expected


def test_no_conversion_where_there_are_no_discussions(hub):
    assert conversion_revision("me/tuned") is None
    hub.faults.add("/discussions", status=403)
    assert conversion_revision("me/tuned") is None
    assert conversion_revision("me/nothing") is None


def test_a_server_error_is_not_the_absence_of_a_conversion(hub):
    hub.faults.add("/discussions", status=500)
    with pytest.raises(Failed) as caught:
        conversion_revision("me/tuned")
    assert caught.value.reason == "server_error"
    assert len(requested(hub, "/discussions")) == QUICK.retries + 1
