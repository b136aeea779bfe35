"""Trees at addresses: a bucket of moto's server, memory, pages of links; and what goes wrong there."""

from __future__ import annotations

import functools
import http.server
import threading
from contextlib import closing

import pytest

from indexer import build, status
from indexer.errors import AtlasError, Failed
from indexer.network import byterange
from indexer.network.session import HttpLimits, install_session
from indexer.sources import addresses
from indexer.sources.addresses import FsspecFiles, file_system, meaning_of
from indexer.sources.file_systems import FileFacts
from indexer.sources.tree import list_tree
from query import Atlas
from tests.tiny_hub import BASE
from tests.trees import adapter, loose

fsspec = pytest.importorskip("fsspec")


@pytest.mark.slow
def test_a_bucket_from_build_to_build(bucket, hub, calls, tmp_path):
    for number in range(3):
        adapter(tmp_path / f"local/runs/m{number}", number)
    loose(tmp_path / "local/runs/loras/one.safetensors", 9, ss_base_model_version=BASE)
    bucket.put(str(tmp_path / "local/runs"), "team-secret/runs", recursive=True)
    calls.clear()
    said = []
    place = "s3://team-secret/runs"
    report = build(BASE, sources=place, workers=1, progress=lambda event: said.append(event.message))
    assert (report.indexed, report.failed) == (4, 0)
    assert report.bytes_read > 50_000
    assert calls["ListObjectsV2"] == 1
    calls.clear()
    again = build(BASE, sources=place, workers=1)
    assert (again.unchanged, again.bytes_read) == (4, 0)
    assert calls == {"ListObjectsV2": 1}
    for file in bucket.find("team-secret/runs/m0"):
        bucket.mv(file, file.replace("/m0/", "/moved/"))
    adapter(tmp_path / "changed", 77)
    bucket.put(str(tmp_path / "changed/adapter_model.safetensors"), "team-secret/runs/m1/adapter_model.safetensors")
    bucket.rm("team-secret/runs/m2", recursive=True)
    third = build(BASE, sources=place, workers=1)
    assert (third.unchanged, third.indexed) == (2, 1)
    with Atlas("atlas") as atlas:
        rows = atlas.rows("SELECT model, deleted_at_hub FROM fine_tunes ORDER BY model")
    assert [tuple(row.values()) for row in rows] == [
        ("local:m0", False), ("local:m1", False), ("local:m2", True), ("local:one", False),
    ]  # fmt: skip
    assert status("atlas")["sources"][0]["address"] == place
    for file in (tmp_path / "atlas").rglob("*"):
        assert not (file.is_file() and file.name != "trees.sqlite" and b"team-secret" in file.read_bytes()), file


@pytest.mark.slow
def test_a_thousand_objects_are_one_request(bucket, calls):
    bucket.pipe({f"team-secret/m{number:04}/adapter_model.safetensors": b"x" for number in range(1_500)})
    calls.clear()
    assert len(list_tree(file_system("s3://team-secret")).models) == 1_500
    assert calls == {"ListObjectsV2": 2}


@pytest.mark.slow
def test_what_goes_wrong_with_a_bucket_is_one_line(bucket, s3_server, monkeypatch):
    install_session(HttpLimits(retries=1, first_wait=0.01))
    with pytest.raises(AtlasError, match=r"s3://no-such-bucket/x cannot be listed: there is no such bucket\."):
        list_tree(file_system("s3://no-such-bucket/x"))
    with pytest.raises(AtlasError, match=r"There is nothing at s3://team-secret/none\."):
        list_tree(file_system("s3://team-secret/none"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    type(bucket).clear_instance_cache()
    with pytest.raises(AtlasError, match="s3://team-secret cannot be listed: "):
        list_tree(file_system("s3://team-secret", {"config_kwargs": {"retries": {"max_attempts": 0}}}))
    # The endpoint as an option, as for MinIO.
    type(bucket).clear_instance_cache()
    bucket_there = file_system("s3://team-secret", {"endpoint_url": s3_server})
    with pytest.raises(AtlasError, match="There is nothing at"):
        list_tree(bucket_there)


class Refused(Exception):
    def __init__(self, code, message="no"):
        super().__init__(f"An error occurred ({code}): {message}")
        self.response = {"Error": {"Code": code, "Message": message}}


def as_s3fs(code):
    from s3fs.errors import translate_boto_error

    error = Refused(code)
    found = translate_boto_error(error)
    found.__cause__ = error
    return found


@pytest.mark.parametrize(
    ("code", "reason", "detail"),
    [
        ("ExpiredToken", "refused", "the credentials have expired"),
        ("InvalidAccessKeyId", "refused", "the access key is not known there"),
        ("AccessDenied", "refused", "these credentials may not read there"),
        ("NoSuchBucket", "not_found", "there is no such bucket"),
        ("NoSuchKey", "not_found", "x is not there"),
        ("SlowDown", "rate_limited", "the server asks for fewer requests"),
        ("ServiceUnavailable", "rate_limited", "no"),
    ],
)
def test_codes_of_s3_are_sentences(code, reason, detail):
    errors = [Refused(code)]
    if pytest.importorskip("s3fs"):
        errors.append(as_s3fs(code))
    for error in errors:
        meaning = meaning_of(error, "x")
        assert (meaning.reason, meaning.detail) == (reason, detail)


def test_a_secret_in_an_error_is_not_repeated():
    meaning = meaning_of(OSError("GET https://h/x?X-Amz-Signature=abcdef&sig=123 failed"), "x")
    assert "abcdef" not in meaning.detail
    assert "123" not in meaning.detail


@pytest.fixture
def memory(tmp_path):
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    for number in range(2):
        adapter(tmp_path / f"local/m{number}", number)
    files.put(str(tmp_path / "local"), "/team", recursive=True)
    yield files
    files.store.clear()


def test_throttling_is_waited_for_and_a_request_too_many_is_a_failure(memory, monkeypatch):
    install_session(HttpLimits(retries=2, first_wait=0.001))
    left, real = [0], type(memory).cat_file

    def slow(self, path, start=None, end=None, **options):
        if left[0] > 0:
            left[0] -= 1
            raise Refused("SlowDown", "Please reduce your request rate.")
        return real(self, path, start=start, end=end, **options)

    monkeypatch.setattr(type(memory), "cat_file", slow)
    files = FsspecFiles("memory://team", {})
    with closing(files.open("m0/adapter_config.json", "adapter_config.json")) as file:
        left[0] = 2
        assert file.read(0, 1) == b"{"
        left[0] = 3
        with pytest.raises(Failed, match="the server asks for fewer requests"):
            file.read(0, 1)


def test_ranges_are_exact_and_counted(memory, monkeypatch):
    received = []
    monkeypatch.setattr(addresses, "count_received", received.append)
    monkeypatch.setattr(byterange, "_BLOCK", 100)
    files = FsspecFiles("memory://team", {})
    whole = memory.cat_file("/team/m0/adapter_model.safetensors")
    with closing(files.open("m0/adapter_model.safetensors", "w")) as file:
        assert file.size == len(whole)
        run = file.run(10, 500)
        assert run.read(3) == whole[10:13]
        run.skip_to(105)
        assert run.read(290) == whole[105:395]
        assert file.read(0, 8, keep=True) == file.read(0, 8) == whole[:8]
        with pytest.raises(ValueError, match="not a part"):
            file.read(0, len(whole) + 1)
        assert sum(received) == file.bytes_read


@pytest.mark.slow
def test_memory_is_built_like_a_folder(memory, hub):
    report = build(BASE, sources="memory://team", workers=1)
    assert report.indexed == 2, report.problem
    assert build(BASE, sources="memory://team", workers=1).unchanged == 2
    memory.rm("/team/m1", recursive=True)
    assert build(BASE, sources="memory://team", workers=1).unchanged == 1
    memory.rm("/team", recursive=True)
    with pytest.raises(AtlasError, match="There is nothing at memory://team"):
        build(BASE, sources="memory://team", workers=1)
    with Atlas("atlas") as atlas:  # what cannot be listed has not left
        assert [row["deleted_at_hub"] for row in atlas.rows("SELECT deleted_at_hub FROM fine_tunes ORDER BY model")] == [
            False, True,
        ]  # fmt: skip


def test_a_file_that_may_be_as_it_was():
    now = FileFacts(3, "time:2026-11-28T02:00:36.894+00:00")
    assert now.agrees(FileFacts(3, "time:2026-11-28T02:00:36+00:00"))
    assert now.agrees(FileFacts(3, "etag:a"))
    assert not now.agrees(FileFacts(3, "time:2026-11-28T02:00:37+00:00"))
    assert not now.agrees(FileFacts(4, now.mark))
    assert not FileFacts(3, "etag:a").agrees(FileFacts(3, "etag:b"))
    assert FileFacts(3, "123").agrees(FileFacts(3, "123"))
    assert not FileFacts(3, "123").agrees(FileFacts(3, "124"))


def test_file_addresses_are_folders(tmp_path):
    adapter(tmp_path / "a b", 1)
    (model,) = list_tree(file_system(f"file://{str(tmp_path).replace(' ', '%20')}")).models
    assert model.path == "a b"
    assert file_system(f"file://{tmp_path}").address == str(tmp_path.resolve())


def test_what_cannot_be_opened_names_the_extra_or_the_address(monkeypatch):
    import fsspec.core

    def missing(*_, **__):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(AtlasError, match=r"Reading s3:// needs a package that is not installed.*\[s3\]"):
        file_system("s3://bucket/x")
    monkeypatch.undo()
    with pytest.raises(AtlasError, match="nosuch://x cannot be opened: Protocol not known: nosuch"):
        file_system("nosuch://x")


@pytest.mark.slow
def test_a_page_of_links(hub, tmp_path):
    pytest.importorskip("aiohttp", reason="needs aiohttp")
    for number in range(2):
        adapter(tmp_path / f"www/runs/m{number}", number)

    class Ranges(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Ranges, directory=str(tmp_path / "www"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            place = f"http://127.0.0.1:{server.server_port}/runs"
            assert build(BASE, sources=place, workers=1).indexed == 2
            assert build(BASE, sources=place, workers=1).unchanged == 2
        finally:
            server.shutdown()
