"""Packs of records that were made to harm: only plain members of the expected size are unpacked."""

from __future__ import annotations

import io
import tarfile
import tracemalloc

import pytest

from indexer.errors import AtlasError
from indexer.share.packs import Pack, plan_packs, unpack, write_pack
from tests.share.conftest import RECORD


def member(name, kind=tarfile.REGTYPE, size=0, pax=None):
    one = tarfile.TarInfo(name)
    one.type, one.size = kind, size
    one.linkname = "/etc/passwd" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
    if pax:
        one.pax_headers = pax
    return one


@pytest.mark.parametrize(
    "members",
    [
        [member(RECORD, tarfile.SYMTYPE)], [member(RECORD, tarfile.LNKTYPE)], [member(RECORD, tarfile.FIFOTYPE)],
        [member(RECORD, tarfile.GNUTYPE_SPARSE)], [member(RECORD, pax={"GNU.sparse.realsize": str(20 << 30)})],
        [member(RECORD, size=4), member(RECORD, size=4)], [member("../x", size=4)], [member(RECORD, size=3)],
        [], [member(RECORD, tarfile.DIRTYPE)], [member(RECORD, size=4), member("more", size=4)],
    ],
)  # fmt: skip
def test_a_pack_holds_plain_members_alone(members, tmp_path):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for one in members:
            tar.addfile(one, io.BytesIO(b"harm"))
    (tmp_path / "pack").write_bytes(content.getvalue())
    with pytest.raises(AtlasError, match="records/"):
        unpack(Pack({RECORD: 4}), tmp_path / "pack", tmp_path / "out")
    (tmp_path / "pack").write_bytes(b"\xff" * 10_240)
    with pytest.raises(AtlasError, match="records/"):
        unpack(Pack({RECORD: 4}), tmp_path / "pack", tmp_path / "out")


def test_the_headers_of_a_pack_take_no_memory(tmp_path):
    with (tmp_path / "pack").open("wb") as file:
        file.write(member("x", tarfile.XHDTYPE, 256 << 20).tobuf(tarfile.USTAR_FORMAT))
        file.truncate(257 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(AtlasError):
            unpack(Pack({RECORD: 4}), tmp_path / "pack", tmp_path / "out")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_record_of_more_than_eight_gigabytes_has_a_plain_header(tmp_path, monkeypatch):
    path = tmp_path / RECORD
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(9 << 30)

    class Enough(Exception):
        pass

    class Beginning(io.BytesIO):
        def write(self, part):
            super().write(part)
            if self.tell() >= 10_240:
                raise Enough

    target = Beginning()
    with pytest.raises(Enough):
        write_pack(Pack({RECORD: 9 << 30}), [tmp_path], target)
    found = tarfile.TarInfo.frombuf(target.getvalue()[:512], "utf-8", "strict")
    assert (found.name, found.size, found.type) == (RECORD, 9 << 30, tarfile.REGTYPE)


def test_the_next_push_sends_what_is_new_and_packs_stay_few():
    """A thousand records in one pack that is not full, and ten more a hundred times."""
    names = [f"records/ab/ab{number:062x}.safetensors" for number in range(2_000)]
    packs, sent = plan_packs(dict.fromkeys(names[:1_000], 100), [], 10**6, 5 * 10**5), 0
    assert len(packs) == 1
    for step in range(1, 101):
        files = dict.fromkeys(names[: 1_000 + 10 * step], 100)
        before, packs = packs, plan_packs(files, packs, 10**6, 5 * 10**5)
        sent += sum(pack.bytes for pack in packs if pack not in before)
        assert len(packs) <= 8
        assert sorted(path for pack in packs for path in pack.members) == names[: len(files)]
    assert sent < 10 * 100 * 1_000  # each of the new bytes is sent at most log2 of a thousand times
    assert plan_packs(files, packs, 10**6, 5 * 10**5) == packs
