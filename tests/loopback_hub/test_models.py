"""What the loopback Hub says of its models, against git, hashlib and plain Python over the same rows."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from scripts.loopback_hub import LoopbackHub, StoreError
from tests.loopback_hub.store import (
    CONVERTED,
    ODD,
    SHA,
    SIZE,
    TITLE,
    WEIGHTS,
    add_row,
    fetch,
    get_json,
    git_oid,
    pages,
    pointer,
    signed_url,
    write,
)


@pytest.fixture
def rows(tmp_path: Path):
    store, random = tmp_path / "listing", np.random.default_rng(0)
    reply = {}
    owners = ("o", "o-1", "o.2")  # by owner and by id are two orders: "-" sorts before "/"
    for number in range(23):
        day = int(random.integers(1, 28))
        reply[f"{owners[number % 3]}/m{number:02d}"] = {
            "downloads": int(random.integers(0, 5)),
            "likes": int(random.integers(0, 99)),
            "created_at": f"2024-01-{day:02d}T00:00:00.000Z",
            "last_modified": f"2024-02-{day:02d}T00:00:00.000Z",
            "trending_score": int(random.integers(0, 9)),
            "tags": ["all", f"base_model:x/b{number % 2}", *(["a,b"] if number % 5 == 0 else [])],
            "pipeline_tag": "fill-mask" if number % 2 else None,
        }
    for repo_id, settings in reply.items():
        add_row(store, repo_id, **settings)
    with LoopbackHub(store, page_size=4) as running:
        yield store, running, reply


SORTS = {
    "downloads": "downloads",
    "likes": "likes",
    "createdAt": "created_at",
    "created_at": "created_at",
    "lastModified": "last_modified",
    "last_modified": "last_modified",
    "trendingScore": "trending_score",
    "trending_score": "trending_score",
}


@pytest.mark.parametrize(("sent", "key"), SORTS.items())
def test_listing_order_over_pages(rows, sent, key):
    _, hub, reply = rows
    ids = [row["id"] for page in pages(f"{hub.endpoint}/api/models?sort={sent}") for row in page]
    values = [reply[repo_id][key] for repo_id in ids]
    assert sorted(ids) == sorted(reply)
    assert values == sorted(values, reverse=True)


def test_listing_filters_and_limits(rows):
    _, hub, reply = rows
    api = f"{hub.endpoint}/api/models"

    def ids(query):
        return {row["id"] for page in pages(f"{api}?{query}") for row in page}

    assert ids("filter=base_model%3Ax%2Fb1") == {i for i, row in reply.items() if "base_model:x/b1" in row["tags"]}
    assert ids("filter=all&filter=base_model:x/b0&filter=a,b") == {
        i for i, row in reply.items() if {"base_model:x/b0", "a,b"} <= set(row["tags"])
    }
    assert ids("filter=all,base_model:x/b0") == {i for i, row in reply.items() if "base_model:x/b0" in row["tags"]}
    assert (
        ids("filter=fill-mask")
        == {i for i, row in reply.items() if row["pipeline_tag"]}
        == ids("pipeline_tag=fill-mask")
    )
    assert ids("filter=base_model:x/b") == set()
    assert ids("author=o-1") == {i for i in reply if i.startswith("o-1/")}
    assert ids("search=M1") == {i for i in reply if "/m1" in i}
    assert [len(page) for page in pages(f"{api}?limit=3")] == [3] * 7 + [2]
    assert [len(page) for page in pages(f"{api}?limit=1000")] == [4] * 5 + [3]
    for bad in (
        "limit=0",
        "limit=x",
        "limit=-1",
        "sort=nonsense",
        "cursor=nonsense",
        "cursor=WzEsMl0%3D",
        "expand=nonsense",
    ):
        assert fetch(f"{api}?{bad}")[0] == 400, bad


def test_a_page_turned_while_rows_come_and_go(rows):
    store, hub, reply = rows
    _, headers, body = fetch(f"{hub.endpoint}/api/models?sort=createdAt&limit=4")
    first = [row["id"] for row in json.loads(body)]
    add_row(store, "o/later", created_at="2025-01-01T00:00:00.000Z")
    (store / f"{first[-1]}.repo.json").unlink()  # the very row that the cursor names
    rest = [row["id"] for page in pages(headers["Link"].partition(">")[0][1:]) for row in page]
    assert sorted(first + rest) == sorted(reply)


def test_rows_hold_what_was_asked_for(hub: LoopbackHub, root: Path):
    api = f"{hub.endpoint}/api/models"
    assert sorted(get_json(f"{api}?search=me/base")[0]) == sorted(
        ["_id", "id", "modelId", "likes", "trendingScore", "private", "downloads", "tags", "createdAt"]
    )
    for spelling in ("expand", "expand[]", "expand%5B%5D"):
        row = get_json(f"{api}?search=me/base&{spelling}=config&{spelling}=siblings&{spelling}=safetensors")[0]
        assert sorted(row) == ["_id", "config", "id", "safetensors", "siblings"]
    assert row["config"] == {"architectures": ["BertModel"], "model_type": "bert"}
    assert row["safetensors"] == {"parameters": {"F32": 60_000, "F16": 15}, "total": 60_015}
    names = ["README.md", "config.json", "model.safetensors", ODD]
    assert row["siblings"] == [{"rfilename": name} for name in names]
    assert fetch(f"{api}?direction=-1")[0] == 400
    for refused in ("childrenModelCount", "usedStorage"):
        assert fetch(f"{api}?expand={refused}")[0] == 400
        assert fetch(f"{api}/me/base?expand={refused}")[0] == 200
    add_row(root, "me/child", tags=["base_model:me/base", "base_model:finetune:me/base"])
    child = get_json(f"{api}/me/child?expand=baseModels&expand=usedStorage")
    ((base,),) = (child["baseModels"].pop("models"),)
    assert (child["baseModels"], base["id"]) == ({"relation": "finetune"}, "me/base")
    assert get_json(f"{api}?search=me/child&expand=baseModels")[0]["baseModels"]["models"] == [base]
    assert child["usedStorage"] == 0
    parent = get_json(f"{api}/me/base?expand=childrenModelCount&expand=usedStorage")
    assert (parent["childrenModelCount"], parent["usedStorage"]) == ({"finetune": 1}, SIZE + 3000)
    full = {row["id"]: row for page in pages(f"{api}?full=true&cardData=true") for row in page}
    assert "priv/secret" not in full
    assert full["off/gone"]["disabled"] is True
    assert full["gated/ok"]["gated"] == "manual"
    assert full["fixed/sha"]["sha"] == SHA
    assert full["fixed/sha"]["cardData"] == {"license": "mit"}
    assert "priv/secret" in [row["id"] for row in get_json(f"{api}?author=priv", Authorization="Bearer hf_good")]


def test_info_and_trees_agree_with_git(hub: LoopbackHub, root: Path):
    info = get_json(f"{hub.endpoint}/api/models/me/base?blobs=true")
    tree = [entry for page in pages(f"{hub.endpoint}/api/models/me/base/tree/main?recursive=true") for entry in page]
    files = {entry["path"]: entry for entry in tree if entry["type"] == "file"}
    assert {entry["path"] for entry in tree if entry["type"] == "directory"} == {"sub", "sub/dir"}
    assert sorted(files) == sorted(sibling["rfilename"] for sibling in info["siblings"])
    for sibling in info["siblings"]:
        content = (root / "me/base" / sibling["rfilename"]).read_bytes()
        entry = files[sibling["rfilename"]]
        assert sibling["size"] == entry["size"] == len(content)
        if sibling["rfilename"].endswith((".safetensors", ".bin")):
            digest = hashlib.sha256(content).hexdigest()
            size = {"size": len(content), "pointerSize": len(pointer(content))}
            assert sibling["lfs"] == {"sha256": digest, **size}
            assert entry["lfs"] == {"oid": digest, **size}
            content = pointer(content)
        else:
            assert "lfs" not in sibling
            assert "lfs" not in entry
        assert sibling["blobId"] == entry["oid"] == git_oid(content)
    top = [entry["path"] for page in pages(f"{hub.endpoint}/api/models/me/base/tree/main") for entry in page]
    assert sorted(top) == ["README.md", "config.json", "model.safetensors", "sub"]
    assert [e["path"] for e in get_json(f"{hub.endpoint}/api/models/me/base/tree/main/sub%2Fdir")] == [ODD]
    for missing, code in (
        ("main/none", "EntryNotFound"),
        ("none", "RevisionNotFound"),
        ("0" * 40, "RevisionNotFound"),
    ):
        status, headers, _ = fetch(f"{hub.endpoint}/api/models/me/base/tree/{missing}")
        assert (status, headers["X-Error-Code"]) == (404, code)


def test_a_changed_file_changes_its_repository_alone(hub: LoopbackHub, root: Path):
    def sha(repo_id):
        return get_json(f"{hub.endpoint}/api/models/{repo_id}")["sha"]

    before = {repo_id: sha(repo_id) for repo_id in ("me/base", "fixed/sha")}
    assert sha("me/base") == before["me/base"]
    assert get_json(f"{hub.endpoint}/api/models/me/base/revision/{before['me/base']}")["sha"] == before["me/base"]
    url = signed_url(hub)
    for number in range(50):  # faster than a file system's clock may tick
        changed = WEIGHTS[:-1] + bytes([number])
        write(root / "me/base/model.safetensors", changed)
        reply = hub.store.repository("me/base").revision().files["model.safetensors"].sha256
        assert reply == hashlib.sha256(changed).hexdigest()
    assert fetch(signed_url(hub))[2] == changed
    assert fetch(url)[0] == 404  # a signed URL names bytes that are no more
    assert sha("me/base") != before["me/base"]
    assert (
        fetch(f"{hub.endpoint}/me/base/resolve/{before['me/base']}/config.json")[1]["X-Error-Code"]
        == "RevisionNotFound"
    )
    write(root / "fixed/sha/model.bin", b"other")
    assert sha("fixed/sha") == SHA
    (root / "me/base.repo.json").write_text('{"downloads": 8, "tags"')  # caught half written
    assert get_json(f"{hub.endpoint}/api/models/me/base")["downloads"] == 7
    (root / "me/base.repo.json").write_text('{"downloads": 8}')
    assert get_json(f"{hub.endpoint}/api/models/me/base")["downloads"] == 8


def test_parameters_are_counted_over_shards_and_never_trusted(hub: LoopbackHub, root: Path):
    for number in (1, 2):
        shard = save({f"t{number}": np.zeros((number, 10), np.float32)})
        write(root / f"many/shards/model-0000{number}-of-00002.safetensors", shard)
    write(root / "many/shards/adapter_model.safetensors", WEIGHTS)
    reply = get_json(f"{hub.endpoint}/api/models/many/shards")
    assert reply["safetensors"] == {"parameters": {"F32": 30}, "total": 30}
    header = b'{"t": {"dtype": "F32", "shape": ["x"]}, "u": 3, "v": {"dtype": "F32", "shape": null}}'
    hostile = (
        b"",
        b"\0" * 7,
        b"\xff" * 99,
        (2**63).to_bytes(8, "little") + b"{}",
        len(header).to_bytes(8, "little") + header,
    )
    for content in hostile:
        write(root / "many/lies/model.safetensors", content)
        write(root / "many/lies/config.json", content)
        reply = get_json(f"{hub.endpoint}/api/models/many/lies")
        assert "safetensors" not in reply
        assert "config" not in reply


def test_a_repository_needs_no_settings_and_no_files(hub: LoopbackHub, root: Path):
    write(root / "bare/files/config.json", b"{}")
    add_row(root, "bare/settings", downloads=3, created_at="2024-05-06T07:08:09+02:00", last_modified="2024-05-06")
    reply = get_json(f"{hub.endpoint}/api/models/bare/files")
    assert (reply["downloads"], reply["gated"], reply["private"], reply["tags"]) == (0, False, False, [])
    assert reply["createdAt"] == "2022-03-02T23:29:04.000Z"
    reply = get_json(f"{hub.endpoint}/api/models/bare/settings")
    assert reply["createdAt"] == "2024-05-06T05:08:09.000Z"
    assert reply["lastModified"] == "2024-05-06"  # malformed stays malformed
    assert reply["siblings"] == []
    assert [row["id"] for row in get_json(f"{hub.endpoint}/api/models?author=bare")] == [
        "bare/files",
        "bare/settings",
    ]
    assert "me/base.pr1" not in [row["id"] for row in get_json(f"{hub.endpoint}/api/models?author=me")]


@pytest.mark.parametrize(
    "broken", [b"[1]", b"{", b"\xff\xfe", b'{"revisions": [1]}', b'{"revisions": {"refs/pr/1": {}}}']
)
def test_the_error_of_a_broken_store_names_the_file(hub: LoopbackHub, root: Path, broken: bytes):
    write(root / "bad/repo.repo.json", broken)
    status, _, body = fetch(f"{hub.endpoint}/api/models/bad/repo/revision/refs%2Fpr%2F1")
    assert status == 500
    assert b"repo.repo.json" in body
    with pytest.raises(StoreError, match="not a folder"):
        LoopbackHub(root / "nowhere")


def test_old_ids_redirect(hub: LoopbackHub):
    for old in ("base", "you/base", "you%2Fbase"):
        for path, rest in (
            ("/api/models/", "/tree/main?recursive=true"),
            ("/api/models/", ""),
            ("/", "/resolve/main/config.json?x=1"),
        ):
            for method in ("GET", "HEAD"):
                status, headers, _ = fetch(f"{hub.endpoint}{path}{old}{rest}", method)
                assert (status, headers["Location"]) == (307, f"{path}me/base{rest}")
    assert fetch(f"{hub.endpoint}/api/models/base/x/y")[0] in (401, 404)


def test_pull_requests(hub: LoopbackHub):
    api = f"{hub.endpoint}/api/models/me/base"
    main = get_json(api)["sha"]
    pull = get_json(f"{api}/revision/refs%2Fpr%2F1")["sha"]
    assert pull != main
    reply = get_json(f"{api}/discussions?p=0&status=open")
    assert [(each["title"], each["author"]["name"], each["num"]) for each in reply["discussions"]] == [
        (TITLE, "SFconvertbot", 1)
    ]
    assert get_json(f"{api}/discussions?author=other")["count"] == 0
    assert get_json(f"{api}/discussions?type=discussion")["discussions"] == []
    assert [each["id"] for each in get_json(f"{api}/commits/refs%2Fpr%2F1")] == [pull, main]
    for spelling in ("refs/pr/1", "refs%2Fpr%2F1", pull):
        assert fetch(signed_url(hub, f"me/base/resolve/{spelling}/model.safetensors"))[2] == CONVERTED
        assert get_json(f"{api}/revision/{spelling}")["sha"] == pull
    assert fetch(f"{hub.endpoint}/me/base/resolve/refs/pr/2/model.safetensors")[1]["X-Error-Code"] == "RevisionNotFound"
