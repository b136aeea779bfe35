"""The loopback Hub's files: redirects, ranges, signed URLs, who may read, and what must never be read."""

from __future__ import annotations

import hashlib
import time
import urllib.parse
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts.loopback_hub import LoopbackHub
from tests.loopback_hub.store import (
    GOOD,
    NOBODY,
    ODD,
    OTHER,
    SIZE,
    WEIGHTS,
    add_row,
    fetch,
    get_json,
    git_oid,
    pages,
    signed_url,
    small_url,
    write,
)


def test_resolve(hub: LoopbackHub, root: Path):
    commit = get_json(f"{hub.endpoint}/api/models/me/base")["sha"]
    small = (root / "me/base/config.json").read_bytes()
    for revision in ("main", commit):
        for method, body in (("GET", small), ("HEAD", b"")):
            status, headers, _ = fetch(f"{hub.endpoint}/me/base/resolve/{revision}/config.json", method)
            assert (status, headers["X-Repo-Commit"]) == (307, commit)
            assert headers["X-Linked-Etag"] == f'"{git_oid(small)}"'
            place, _, query = headers["Location"].partition("?")
            assert place == f"/api/resolve-cache/models/me/base/{commit}/config.json"
            assert "etag=" in query
            status, headers, got = fetch(hub.endpoint + headers["Location"], method)
            assert (status, got, headers["X-Repo-Commit"]) == (200, body, commit)
            assert headers["ETag"] == f'"{git_oid(small)}"'
            assert headers["Content-Length"] == str(len(small))
            status, headers, _ = fetch(f"{hub.endpoint}/me/base/resolve/{revision}/model.safetensors", method)
            assert (status, headers["X-Repo-Commit"]) == (302, commit)
            assert headers["X-Linked-Size"] == str(len(WEIGHTS))
            assert headers["X-Linked-Etag"] == f'"{hashlib.sha256(WEIGHTS).hexdigest()}"'
            assert headers["Location"].startswith(hub.cdn_endpoint)
            assert not any("xet" in name.lower() for name in headers)
    status, headers, _ = fetch(f"{hub.endpoint}/me/base/resolve/main/none.json", "HEAD")
    assert (status, headers["X-Error-Code"], headers["X-Repo-Commit"]) == (404, "EntryNotFound", commit)
    place = small_url(hub, "me/base/resolve/main/config.json")
    assert fetch(place, If_None_Match=fetch(place)[1]["ETag"])[::2] == (304, b"")
    for other in (place.replace("config.json", "model.safetensors"), place.replace(commit, "0" * 40)):
        assert fetch(other)[0] == 404
    assert fetch(signed_url(hub, f"me/base/resolve/main/{urllib.parse.quote(ODD)}"))[2] == b"odd" * 1000


RANGES = {
    None: None,
    "bytes=0-7": (0, 8),
    "bytes=8-": (8, SIZE),
    "bytes=-5": (SIZE - 5, SIZE),
    "bytes=7-7": (7, 8),
    f"bytes=0-{SIZE * 2}": (0, SIZE),
    f"bytes=-{SIZE * 2}": (0, SIZE),
    f"bytes={SIZE - 1}-": (SIZE - 1, SIZE),
    f"bytes={SIZE}-": 416,
    f"bytes={SIZE + 5}-{SIZE + 9}": 416,
    "bytes=-0": 416,
    "bytes=9-3": None,
    "bytes=0-1,5-6": None,
    "items=0-1": None,
    "bytes=": None,
    "bytes=-": None,
    "bytes=a-b": None,
    f"bytes={'9' * 5000}-": None,
}


@pytest.mark.parametrize(("sent", "part"), RANGES.items())
def test_ranges(hub: LoopbackHub, root: Path, sent, part):
    small = (root / "me/base/model.safetensors").with_name("plain.txt")
    write(small, WEIGHTS)
    for url in (signed_url(hub), small_url(hub, "me/base/resolve/main/plain.txt")):
        hub.reset_log()
        status, headers, body = fetch(url, **({"Range": sent} if sent else {}))
        assert headers["Accept-Ranges"] == "bytes"
        if part == 416:
            assert (status, body, headers["Content-Range"]) == (416, b"", f"bytes */{SIZE}")
        elif part is None:
            assert (status, body, headers["Content-Range"]) == (200, WEIGHTS, None)
        else:
            start, stop = part
            assert (status, body) == (206, WEIGHTS[start:stop])
            assert headers["Content-Range"] == f"bytes {start}-{stop - 1}/{SIZE}"
        assert int(headers["Content-Length"]) == len(body) == hub.body_bytes()
        assert fetch(url, "HEAD")[1]["Content-Length"] == str(SIZE)


def test_if_range_holds_only_for_the_same_bytes(hub: LoopbackHub):
    url = signed_url(hub)
    etag = fetch(url, "HEAD")[1]["ETag"]
    assert fetch(url, Range="bytes=0-3", If_Range=etag)[::2] == (206, WEIGHTS[:4])
    assert fetch(url, Range="bytes=0-3", If_Range='"other"')[::2] == (200, WEIGHTS)


def test_signed_urls_open_one_file_for_a_while(hub: LoopbackHub, monkeypatch):
    url = signed_url(hub)
    assert fetch(url)[0] == 200
    forged = url.replace("Signature=", "Signature=0")
    prolonged = url.replace("Expires=1", "Expires=2")
    other_file = url.replace("model.safetensors", "config.json")
    for altered in (forged, prolonged, other_file, url.partition("?")[0]):
        assert fetch(altered)[0] == 403, altered
    assert fetch(f"{hub.cdn_endpoint}/etc/passwd")[0] == 404
    clock = SimpleNamespace(now=time.time())
    monkeypatch.setattr("scripts.loopback_hub.files.time", SimpleNamespace(time=lambda: clock.now))
    hub.files.url_lifetime = 60.0
    short = signed_url(hub)
    clock.now += 59.0
    assert fetch(short)[0] == 200
    clock.now += 1.5
    assert fetch(short)[0] == 403
    assert fetch(url)[0] == 200
    hub.files.signs_like = "s3"
    short = signed_url(hub)
    assert "X-Amz-Expires=60&" in short
    assert "Expires=1" not in short
    clock.now += 58.0
    assert fetch(short)[0] == 200
    assert fetch(short.replace("X-Amz-Expires=60", "X-Amz-Expires=600"))[0] == 403
    clock.now += 2.5
    assert fetch(short)[::2] == (403, b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>")


def test_an_address_got_with_a_range_opens_for_that_range_alone(hub: LoopbackHub):
    resolve = f"{hub.endpoint}/me/base/resolve/main/model.safetensors"
    bound = fetch(resolve, Range="bytes=0-7")[1]["Location"]
    assert fetch(bound, Range="bytes=0-7")[::2] == (206, WEIGHTS[:8])
    assert fetch(bound, Range="bytes=8-15")[::2] == (403, b"Auth failed: invalid range")
    free = fetch(resolve, "HEAD", Range="bytes=0-7")[1]["Location"]
    assert fetch(free, Range="bytes=8-15")[::2] == (206, WEIGHTS[8:16])


def test_a_token_can_be_refused_what_anybody_may_read(root: Path):
    with LoopbackHub(root, narrow_tokens=["narrow"]) as hub:
        for path in ("api/models/me/base", "me/base/resolve/main/model.safetensors"):
            assert fetch(f"{hub.endpoint}/{path}", Authorization="Bearer narrow")[0] == 403
            assert fetch(f"{hub.endpoint}/{path}")[0] in (200, 302)


REPO_NOT_FOUND = {401: (401, "RepoNotFound"), 404: (404, "RepoNotFound")}


@pytest.mark.parametrize(
    ("repo_id", "caller", "info", "file"),
    [
        ("gated/ok", NOBODY, (200, None), (401, "GatedRepo")),
        ("gated/ok", OTHER, (200, None), (403, "GatedRepo")),
        ("gated/ok", GOOD, (200, None), (302, None)),
        ("priv/secret", NOBODY, REPO_NOT_FOUND[401], REPO_NOT_FOUND[401]),
        ("priv/secret", OTHER, REPO_NOT_FOUND[404], REPO_NOT_FOUND[404]),
        ("priv/secret", GOOD, (200, None), (302, None)),
        ("no/where", NOBODY, REPO_NOT_FOUND[401], REPO_NOT_FOUND[401]),
        ("no/where", GOOD, REPO_NOT_FOUND[404], REPO_NOT_FOUND[404]),
        ("off/gone", NOBODY, (403, None), (403, None)),
        ("off/gone", GOOD, (403, None), (403, None)),
        ("me/base", OTHER, (200, None), (302, None)),
    ],
)
def test_access(hub: LoopbackHub, repo_id, caller, info, file):
    name = "model.safetensors" if repo_id == "me/base" else "model.bin"
    status, headers, _ = fetch(f"{hub.endpoint}/api/models/{repo_id}", **caller)
    assert (status, headers["X-Error-Code"]) == info
    for method in ("HEAD", "GET"):
        status, headers, _ = fetch(f"{hub.endpoint}/{repo_id}/resolve/main/{name}", method, **caller)
        assert (status, headers["X-Error-Code"]) == file
    if repo_id == "off/gone":
        assert headers["X-Error-Message"] == "Access to this resource is disabled."
    assert hub.leaks == []
    assert [request.authorized for request in hub.requests] == [bool(caller)] * 3
    assert "hf_good" not in repr(hub.requests)


def test_a_token_sent_to_the_cdn_is_a_leak(hub: LoopbackHub):
    assert fetch(signed_url(hub), **GOOD)[0] == 400
    assert [(leak.role, leak.filename) for leak in hub.leaks] == [("cdn", "model.safetensors")]


# Targets as they go over the wire, below either endpoint.
ESCAPES = [
    r"",
    r"me/base/resolve/main/../../../secret.txt",
    r"me/base/resolve/main/..%2f..%2f..%2fsecret.txt",
    r"me/base/resolve/main/%2e%2e/%2e%2e/%2e%2e/secret.txt",
    r"me/base/resolve/main//etc/passwd",
    r"me/base/resolve/main/%2fetc%2fpasswd",
    r"me/base/resolve/main/link.txt",
    r"me/base/resolve/main/folder/secret.txt",
    r"me/base/resolve/..%2f..%2f../secret.txt",
    r"../outside/resolve/main/secret.txt",
    r"%2e%2e/outside/resolve/main/secret.txt",
    r"me/../resolve/main/secret.txt",
    r"me/%2e%2e/resolve/main/secret.txt",
    r"me%2f..%2f../resolve/main/outside%2fsecret.txt",
    r"me/linked/resolve/main/secret.txt",
    r"linked/outside/resolve/main/secret.txt",
    r"me/y/resolve/main/secret.txt",
    r"me/z/resolve/refs%2Fpr%2F1/secret.txt",
    r"me/z/resolve/refs%2Fpr%2F2/secret.txt",
    r"me/base/resolve/main/%00",
    r"me/base/resolve/main/..\..\secret.txt",
    r"api/models/me/x",
    r"api/models/me/y?expand=config",
    r"api/models/me/linked",
    r"api/models/me/base/tree/main/..%2f..",
    r"api/models/../outside",
    r"api/models/linked/outside",
    r"me/base.repo.json",
    r"me/base/resolve/main/%0d%0aX-Evil:%201",
    r"%",
    r"?",
    r"/",
    r"api",
    r"api/",
    r"api/models/",
    r"api/models//",
    r"",
]


def test_nothing_outside_the_root_is_served(hub: LoopbackHub, root: Path):
    outside = root.parent / "outside"
    write(outside / "secret.txt", b"SECRET")
    write(outside / "config.json", {"model_type": "SECRET"})
    write(root.parent / "secret.txt", b"SECRET")
    (root / "me/base/link.txt").symlink_to(outside / "secret.txt")
    (root / "me/base/folder").symlink_to(outside)
    (root / "me/linked").symlink_to(outside)
    (root / "linked").symlink_to(root.parent)
    write(outside / "x.repo.json", {"tags": ["SECRET"]})
    (root / "me/x.repo.json").symlink_to(outside / "x.repo.json")
    (root / "me/y").symlink_to(outside)
    add_row(root, "me/y")
    revisions = {"refs/pr/1": {"folder": "../outside"}, "refs/pr/2": {"folder": str(outside)}}
    add_row(root, "me/z", revisions=revisions)
    (root / "me/base/inside.txt").symlink_to(root / "fixed/sha/model.bin")
    for raw in ESCAPES:
        for endpoint in (hub.endpoint, hub.cdn_endpoint):
            status, headers, body = fetch(f"{endpoint}/{raw}")
            assert b"SECRET" not in body, raw
            assert headers["X-Evil"] is None
            if "resolve" in raw:
                assert status >= 400, raw
    for number in (1, 2):
        status, _, body = fetch(f"{hub.endpoint}/me/z/resolve/refs%2Fpr%2F{number}/secret.txt")
        assert status == 500
        assert f"me/z.repo.json: revision 'refs/pr/{number}' has no folder in the store" in body.decode()
    names = [sibling["rfilename"] for sibling in get_json(f"{hub.endpoint}/api/models/me/base")["siblings"]]
    assert not {"link.txt", "folder/secret.txt"} & set(names)
    assert fetch(small_url(hub, "me/base/resolve/main/inside.txt"))[2] == b"PK" * 99
    listed = {row["id"] for page in pages(f"{hub.endpoint}/api/models") for row in page}
    assert listed == {"me/base", "gated/ok", "off/gone", "fixed/sha", "me/y", "me/z"}
