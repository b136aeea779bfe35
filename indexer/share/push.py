"""`index push`: one generation of an atlas becomes a dataset repository on the Hub.

Bytes go first, where nobody sees them; then one commit whose parent is the head that was looked at; then the tag. So a
reader sees the atlas before or after, never a mixture; and whoever publishes meanwhile is not overwritten.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants
from huggingface_hub.errors import HfHubHTTPError

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError, Failed, ModelError, without_user
from indexer.network.hub import model_row
from indexer.network.hub_requests import fetch_small
from indexer.network.session import as_user_error, install_session, our_progress_bars
from indexer.share.address import Address
from indexer.share.card import card
from indexer.share.contents import packable
from indexer.share.manifest import NAME, RECORDS, FileEntry, Manifest
from indexer.share.packs import (
    INDEX,
    LARGEST_INDEX,
    TARGET_BYTES,
    Pack,
    decode_index,
    encode_index,
    hash_pack,
    plan_packs,
    write_pack,
)
from indexer.share.repository import LIMITS, Remote, failures_told, read_remote, resolve, tags
from indexer.share.staging import DATABASE, Staged, staged
from indexer.storage.checksums import file_sha256

if TYPE_CHECKING:
    from huggingface_hub.hf_api import CommitInfo

CARD = "README.md"
# Files of one request for signed addresses: a few at a time, so that what was sent counts when a push is killed.
AT_ONCE = 50
# Names that a refusal gives before it only counts.
MOST_NAMES = 5

Say = Callable[[str], None]


@dataclass(frozen=True)
class PushOptions:
    """``tag``: None for g<generation>; ``pack_bytes``: how large a pack of records may be."""

    private: bool = False
    tag: str | None = None
    with_records: bool = False
    with_private: bool = False
    with_local: bool = False
    force: bool = False
    dry_run: bool = False
    pack_bytes: int = TARGET_BYTES


@dataclass(frozen=True)
class PushReport:
    """What a push did, or would do; bytes of files, before any is found to be in the Hub's store already."""

    repository: str
    url: str
    commit: str | None
    tag: str | None
    generation: int
    models: int
    files: int
    bytes: int
    sent_files: int
    sent_bytes: int
    removed_files: int
    seconds: float
    changes: list[dict[str, Any]] = field(default_factory=list)

    def as_row(self) -> dict[str, Any]:
        """For the command line."""
        return asdict(self)


@dataclass
class _Plan:
    """What the commit will do: files to send, by path, and to remove."""

    sent: dict[str, FileEntry]
    removed: list[str]


def push(folder: AtlasFolder, name: str, options: PushOptions, say: Say) -> PushReport:
    """Push what is published now as the dataset ``name`` (OWNER/NAME).

    Raises AtlasError where this account may not, where somebody else's newer atlas is there (unless ``force``), where
    the repository is no atlas, or somebody published meanwhile; nothing of it is visible then.
    """
    started = time.monotonic()
    address = Address.parse(name)
    if address.revision:
        raise AtlasError(f"{name} names a revision: a push makes a new one.", f"index push {address.name} --tag TAG")
    install_session(LIMITS, say)
    with staged(folder, with_records=options.with_records) as stage:
        _require_shareable(stage, options)
        remote = _remote(address)
        _require_no_newer(remote, stage, options)
        _keep_database(remote, stage)
        tag, known_tags = _tag(remote, stage, options, say)
        packs = _packs(folder, stage, remote, options) if options.with_records else {}
        _finish(stage, address.name, packs, remote)
        plan = _planned(stage, remote)
        sha = None
        if not options.dry_run:
            with our_progress_bars():
                sha = _publish(folder, address.name, stage, packs, plan, remote, options)
            if tag is not None and tag not in known_tags:
                _set_tag(address.name, tag, sha)
        manifest = stage.manifest
        if options.with_records is False and remote and remote.manifest and remote.manifest.of(RECORDS):
            say("records were there of an earlier push and are not of this one: --with-records sends them")
        return PushReport(
            repository=address.name,
            url=f"{without_user(constants.ENDPOINT)}/datasets/{address.name}",
            commit=sha,
            tag=tag,
            generation=manifest.generation,
            models=manifest.counts.get("models", 0),
            files=len(manifest.files) + 1,
            bytes=sum(one.bytes for one in manifest.files),
            sent_files=len(plan.sent),
            sent_bytes=sum(one.bytes for one in plan.sent.values()),
            removed_files=len(plan.removed),
            seconds=round(time.monotonic() - started, 2),
            changes=_changes(plan) if options.dry_run else [],
        )


def _changes(plan: _Plan) -> list[dict[str, Any]]:
    told = [{"path": path, "bytes": one.bytes, "change": "send"} for path, one in sorted(plan.sent.items())]
    return told + [{"path": path, "bytes": 0, "change": "remove"} for path in plan.removed]


def _require_shareable(stage: Staged, options: PushOptions) -> None:
    """Raises AtlasError where not everybody may see what would be pushed, and nobody said that it is to be."""
    for models, is_wanted, what, flag in (
        (stage.private, options.with_private, "are private or gated on the Hub, or in no listing", "--with-private"),
        (stage.local, options.with_local, "are folders of this machine", "--with-local"),
    ):
        if models and not is_wanted:
            raise AtlasError(
                f"This atlas holds models that {what}: {_some(models)}. "
                "Whoever reads it would see their names, vectors and cards.",
                f"Take them out (index remove {models[0]}), or push them all the same with {flag}.",
            )
    if stage.with_path:
        raise AtlasError(
            f"The cards or adapter_config.json of {_some(stage.with_path)} were read by an earlier version, which kept "
            "paths of this machine.",
            f"Take each out and add it again: index remove {stage.with_path[0]}, then index add FOLDER.",
        )
    for base in () if options.with_private else stage.manifest.commits:
        try:
            row = model_row(base)
        except ModelError as error:
            if isinstance(error, Failed) and error.reason != "not_found":
                raise as_user_error(error, f"the base model {base}") from error
            continue
        if row.get("private") or (row.get("gated") and options.with_records):
            why = "private" if row.get("private") else "gated, and its block matrices are among the records"
            raise AtlasError(f"The base {base} is {why}.", "Push it all the same with --with-private.")


def _some(models: Sequence[str]) -> str:
    return ", ".join(models[:MOST_NAMES]) + (
        f" and {len(models) - MOST_NAMES} more" if len(models) > MOST_NAMES else ""
    )


def _remote(address: Address) -> Remote | None:
    """What is there now; None where there is no such repository (or none that this account may see)."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        return read_remote(address, resolve(address))
    except AtlasError as error:
        cause = error.__cause__
        if isinstance(cause, RepositoryNotFoundError) and not isinstance(cause, GatedRepoError):
            return None
        raise


def _require_no_newer(remote: Remote | None, stage: Staged, options: PushOptions) -> None:
    if remote is None or options.force:
        return
    name, there = remote.address.name, remote.manifest
    if there is None:
        if remote.is_bare:
            return
        raise AtlasError(
            f"The dataset {name} is no atlas: it has {len(remote.files)} files, and no {NAME} among them.",
            "Choose another name; --force puts the atlas beside what is there.",
        )
    here = stage.manifest
    if there.source == here.source:
        return
    for base, commit in there.commits.items():
        if here.commits.get(base, commit) != commit:
            raise AtlasError(
                f"{name} holds an atlas of {base} at another commit ({commit[:12]}, here {here.commits[base][:12]}).",
                "Choose another name; --force puts this one in its place.",
            )
    if lost := sorted(there.commits.keys() - here.commits.keys()):
        raise AtlasError(
            f"{name} holds an atlas of {', '.join(lost[:3])}, which this one has not.",
            "Choose another name, or pull and `index merge` them; --force puts this one in its place.",
        )
    if there.generation > here.generation or (there.published, there.generation) > (here.published, here.generation):
        raise AtlasError(
            f"{name} holds a newer atlas: generation {there.generation} of {there.published}, here {here.generation} "
            f"of {here.published}.",
            "Pull it and build on it, or choose another name; --force puts this one in its place.",
        )


def _keep_database(remote: Remote | None, stage: Staged) -> None:
    """Where the same database was pushed before, that file stays: written anew it never has the same bytes."""
    there = remote.manifest if remote is not None else None
    if there is None or not there.source or there.source != stage.manifest.source:
        return
    pushed = there.file(DATABASE)
    if pushed is not None and remote is not None and _is_there(remote, pushed, None):
        kept = tuple(pushed if one.path == DATABASE else one for one in stage.manifest.files)
        stage.manifest = replace(stage.manifest, files=kept)


def _tag(remote: Remote | None, stage: Staged, options: PushOptions, say: Say) -> tuple[str | None, Mapping[str, str]]:
    """The tag to set, if any, and those that are there.

    Raises AtlasError where the one asked for names something else. The usual one is left alone then.
    """
    known = tags(remote.address.name) if remote is not None else {}
    tag = options.tag or f"g{stage.manifest.generation}"
    if tag not in known:
        return tag, known
    assert remote is not None  # else there are no tags
    if known[tag] == remote.sha and remote.manifest and remote.manifest.source == stage.manifest.source:
        return tag, known
    if options.tag is None:
        say(f"the tag {tag} names another atlas and stays there: choose one with --tag")
        return None, known
    raise AtlasError(f"{remote.address.name} has a tag {tag} already, of another commit.", "Choose another --tag.")


def _packs(folder: AtlasFolder, stage: Staged, remote: Remote | None, options: PushOptions) -> dict[str, Pack]:
    before: dict[str, Pack] = {}
    if remote is not None and remote.manifest is not None and INDEX in remote.files:
        name = remote.address.name
        with failures_told(name, "read"):
            before = decode_index(fetch_small(name, INDEX, remote.sha, LARGEST_INDEX, repo_type="dataset"), name)
        # Of a pack that is there the checksum is known, and it need not be written again.
        before = {path: pack for path, pack in before.items() if remote.manifest.file(path)}
    files = {
        path: source.stat().st_size
        for path, source in packable(folder)
        if source.name.partition(".")[0] in stage.digests
    }
    if not files:
        raise AtlasError(f"{folder.root} holds no records to push.", "Leave out --with-records.")
    least = options.pack_bytes // 2
    packs = plan_packs(files, before.values(), options.pack_bytes, least)
    index = stage.folder / INDEX
    index.parent.mkdir(parents=True, exist_ok=True)
    index.write_bytes(encode_index(packs))
    stage.add(INDEX, index, RECORDS)
    for pack in packs:
        known = remote.manifest.file(pack.path) if remote is not None and remote.manifest is not None else None
        if known is None:
            size, sha256 = hash_pack(pack, folder.root)
            known = FileEntry(pack.path, size, sha256, RECORDS)
        stage.manifest = replace(stage.manifest, files=(*stage.manifest.files, known))
    return {pack.path: pack for pack in packs}


def _finish(stage: Staged, name: str, packs: Mapping[str, Pack], remote: Remote | None) -> None:
    """The card, and last of all the manifest."""
    paths = {one.path for one in stage.manifest.files}
    records = sum(pack.bytes for pack in packs.values())
    (stage.folder / CARD).write_bytes(card(name, stage.manifest, paths, records_bytes=records, skipped=stage.skipped))
    (stage.folder / NAME).write_bytes(stage.manifest.encoded())
    stage.sources |= {CARD: stage.folder / CARD, NAME: stage.folder / NAME}


def _planned(stage: Staged, remote: Remote | None) -> _Plan:
    """What differs from what is there; removed is only what the atlas before this one named."""
    wanted = {one.path: one for one in stage.manifest.files}
    for path in (CARD, NAME):
        source = stage.sources[path]
        wanted[path] = FileEntry(path, source.stat().st_size, file_sha256(source), "")
    if remote is None:
        return _Plan(wanted, [])
    sent = {path: one for path, one in wanted.items() if not _is_there(remote, one, stage.sources.get(path))}
    before = {one.path for one in remote.manifest.files} if remote.manifest is not None else set()
    return _Plan(sent, sorted((before - wanted.keys()) & remote.files.keys()))


def _is_there(remote: Remote, wanted: FileEntry, source: Path | None) -> bool:
    there = remote.files.get(wanted.path)
    if there is None or there.size != wanted.bytes:
        return False
    if there.sha256 is not None:
        return there.sha256 == wanted.sha256
    return source is not None and there.oid == _blob_id(source)


def _blob_id(path: Path) -> str:
    """Git's id of a file's content."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def _publish(
    folder: AtlasFolder,
    name: str,
    stage: Staged,
    packs: Mapping[str, Pack],
    plan: _Plan,
    remote: Remote | None,
    options: PushOptions,
) -> str:
    """Send, then commit; the sha of the commit. Raises AtlasError."""
    api = HfApi()
    with failures_told(name, "write to"):
        if remote is None:
            api.create_repo(name, repo_type="dataset", private=options.private or None, exist_ok=True)
    head = remote.sha if remote is not None else resolve(Address(name))
    if not plan.sent and not plan.removed:
        return head
    additions = _sent(api, folder, name, stage, packs, plan)
    operations: list[CommitOperationAdd | CommitOperationDelete] = list(additions)
    operations += [CommitOperationDelete(path) for path in plan.removed]
    summary = f"Generation {stage.manifest.generation}: {stage.manifest.counts.get('models', 0)} models"
    with failures_told(name, "write to"):
        try:
            made: CommitInfo = api.create_commit(
                name, operations, commit_message=summary, repo_type="dataset", parent_commit=head
            )
            return str(made.oid)
        except HfHubHTTPError as error:
            if error.response.status_code < 500 and error.response.status_code not in (408, 412):
                raise
            return _committed_all_the_same(name, head, stage.manifest, error)
        except Exception as error:  # the answer may have been lost behind a commit that was made
            return _committed_all_the_same(name, head, stage.manifest, error)


def _sent(
    api: HfApi, folder: AtlasFolder, name: str, stage: Staged, packs: Mapping[str, Pack], plan: _Plan
) -> list[CommitOperationAdd]:
    """Everything that goes into the commit, its bytes sent; packs are written one at a time."""
    plain = [path for path in sorted(plan.sent, key=lambda path: -plan.sent[path].bytes) if path not in packs]
    additions = [CommitOperationAdd(path, stage.sources[path]) for path in plain]
    with failures_told(name, "write to"):
        for start in range(0, len(additions), AT_ONCE):
            api.preupload_lfs_files(name, additions[start : start + AT_ONCE], repo_type="dataset", free_memory=False)
    for path in sorted(plan.sent.keys() & packs.keys()):
        target = stage.folder / path
        write_pack(packs[path], folder.root, target)
        if file_sha256(target) != plan.sent[path].sha256:
            raise AtlasError(
                f"Records of {folder.root} changed while they were being pushed.", "Run it again when no build writes."
            )
        addition = CommitOperationAdd(path, target)
        with failures_told(name, "write to"):
            api.preupload_lfs_files(name, [addition], repo_type="dataset", free_memory=False)
        target.unlink()
        additions.append(addition)
    return additions


def _committed_all_the_same(name: str, head: str, manifest: Manifest, error: Exception) -> str:
    """The head where it is ours by now, else ``error`` again."""
    try:
        address = Address(name)
        sha = resolve(address)
        there = read_remote(address, sha).manifest if sha != head else None
        if there is not None and there.encoded() == manifest.encoded():
            return sha
    except AtlasError:
        pass
    raise error


def _set_tag(name: str, tag: str, sha: str) -> None:
    with failures_told(name, "write to"):
        HfApi().create_tag(name, tag=tag, revision=sha, repo_type="dataset", exist_ok=True)
