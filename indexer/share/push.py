"""`index push`: publish one generation of an atlas as a dataset repository on the Hub.

Files are uploaded first, where they are not visible; then one commit is made whose parent is the head that was read;
then the tag. So readers see the atlas before or after the push, never a mixture, and another push is not overwritten.
What to upload is planned here and not left to ``create_commit``, because a dry run shows it and packs are written to
disk one at a time, only if they are needed.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError, Failed, ModelError, without_user
from indexer.network.hub import model_row
from indexer.network.hub_errors import as_user_error
from indexer.network.hub_requests import fetch_small
from indexer.network.session import install_session, our_progress_bars
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
from indexer.share.repository import LIMITS, Address, RemoteCommit, hub_errors_as_ours, read_commit, resolve, tags
from indexer.share.staging import DATABASE, Staged, staged
from indexer.storage.checksums import file_sha256

if TYPE_CHECKING:
    from huggingface_hub.hf_api import CommitInfo

CARD = "README.md"
# Names that an error lists before it only counts.
MOST_NAMES = 5

Say = Callable[[str], None]


@dataclass(frozen=True)
class PushOptions:
    """``tag``: None for g<generation>; ``pack_bytes``: the largest size of a pack of records."""

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
    """What a push did, or would do; bytes include files that the Hub's store already has."""

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


@dataclass
class _Plan:
    """What the commit will do: files to send, by path, and paths to remove."""

    sent: dict[str, FileEntry]
    removed: list[str]


def push(folder: AtlasFolder, name: str, options: PushOptions, say: Say) -> PushReport:
    """Push the published generation as the dataset ``name`` (OWNER/NAME).

    Raises AtlasError, with nothing visible on the Hub, if this account may not write there, if the repository holds a
    newer atlas or something else (unless ``force``), or if somebody else published meanwhile.
    """
    started = time.monotonic()
    address = Address.parse(name)
    if address.revision:
        hint = f"index push {address.name} --tag TAG"
        raise AtlasError(f"{name} names a revision, but a push makes a new one.", hint)
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
                with hub_errors_as_ours(address.name, "write to"):
                    HfApi().create_tag(address.name, tag=tag, revision=sha, repo_type="dataset", exist_ok=True)
        manifest = stage.manifest
        if options.with_records is False and remote and remote.manifest and remote.manifest.of(RECORDS):
            say("an earlier push included records, this one does not: --with-records sends them")
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
            changes=[
                *({"path": path, "bytes": one.bytes, "change": "send"} for path, one in sorted(plan.sent.items())),
                *({"path": path, "bytes": 0, "change": "remove"} for path in plan.removed),
            ]
            if options.dry_run
            else [],
        )


def _require_shareable(stage: Staged, options: PushOptions) -> None:
    """Raise AtlasError if private models would be pushed without the option that allows it."""
    for models, is_wanted, what, flag in (
        (stage.private, options.with_private, "are private or gated on the Hub, or in no listing", "--with-private"),
        (stage.local, options.with_local, "are folders of this machine", "--with-local"),
    ):
        if models and not is_wanted:
            raise AtlasError(
                f"This atlas holds models that {what}: {_some(models)}. "
                "Every reader would see their names, vectors and cards.",
                f"Remove them (index remove {models[0]}), or push them anyway with {flag}.",
            )
    if stage.with_path:
        raise AtlasError(
            f"The cards or adapter_config.json of {_some(stage.with_path)} were read by an earlier version, which kept "
            "paths of this machine.",
            f"Remove each and add it again: index remove {stage.with_path[0]}, then index add FOLDER.",
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
            raise AtlasError(f"The base {base} is {why}.", "Push it anyway with --with-private.")


def _some(models: Sequence[str]) -> str:
    return ", ".join(models[:MOST_NAMES]) + (
        f" and {len(models) - MOST_NAMES} more" if len(models) > MOST_NAMES else ""
    )


def _remote(address: Address) -> RemoteCommit | None:
    """What the repository holds now; None if it does not exist or is not visible to this account."""
    try:
        return read_commit(address, resolve(address))
    except AtlasError as error:
        cause = error.__cause__
        if isinstance(cause, RepositoryNotFoundError) and not isinstance(cause, GatedRepoError):
            return None
        raise


def _require_no_newer(remote: RemoteCommit | None, stage: Staged, options: PushOptions) -> None:
    if remote is None or options.force:
        return
    name, there = remote.address.name, remote.manifest
    if there is None:
        if remote.is_empty:
            return
        raise AtlasError(
            f"The dataset {name} is not an atlas: it has {len(remote.files)} files, but no {NAME}.",
            "Choose another name; --force adds the atlas to its files.",
        )
    here = stage.manifest
    if there.source == here.source:
        return
    for base, commit in there.commits.items():
        if here.commits.get(base, commit) != commit:
            raise AtlasError(
                f"{name} holds an atlas of {base} at another commit ({commit[:12]}, here {here.commits[base][:12]}).",
                "Choose another name; --force replaces it.",
            )
    if lost := sorted(there.commits.keys() - here.commits.keys()):
        raise AtlasError(
            f"{name} holds an atlas of {', '.join(lost[:3])}, which this one lacks.",
            "Choose another name, or pull and `index merge` them; --force replaces it.",
        )
    if there.generation > here.generation or (there.published, there.generation) > (here.published, here.generation):
        raise AtlasError(
            f"{name} holds a newer atlas: generation {there.generation} of {there.published}, here {here.generation} "
            f"of {here.published}.",
            "Pull it and build on it, or choose another name; --force replaces it.",
        )


def _keep_database(remote: RemoteCommit | None, stage: Staged) -> None:
    """Keep the pushed file of an unchanged database: rewritten, it would never have the same bytes."""
    there = remote.manifest if remote is not None else None
    if there is None or not there.source or there.source != stage.manifest.source:
        return
    pushed = there.file(DATABASE)
    if pushed is not None and remote is not None and _is_there(remote, pushed, None):
        kept = tuple(pushed if one.path == DATABASE else one for one in stage.manifest.files)
        stage.manifest = replace(stage.manifest, files=kept)


def _tag(
    remote: RemoteCommit | None, stage: Staged, options: PushOptions, say: Say
) -> tuple[str | None, Mapping[str, str]]:
    """The tag to set, if any, and the existing ones.

    If the tag exists and names something else, the default tag is not set, and a chosen one raises AtlasError.
    """
    known = tags(remote.address.name) if remote is not None else {}
    tag = options.tag or f"g{stage.manifest.generation}"
    if tag not in known:
        return tag, known
    assert remote is not None  # otherwise there are no tags
    if known[tag] == remote.sha and remote.manifest and remote.manifest.source == stage.manifest.source:
        return tag, known
    if options.tag is None:
        say(f"the tag {tag} already names another atlas and is not moved: choose one with --tag")
        return None, known
    raise AtlasError(f"{remote.address.name} already has a tag {tag}, of another commit.", "Choose another --tag.")


def _packs(folder: AtlasFolder, stage: Staged, remote: RemoteCommit | None, options: PushOptions) -> dict[str, Pack]:
    before: dict[str, Pack] = {}
    if remote is not None and remote.manifest is not None and INDEX in remote.files:
        name = remote.address.name
        with hub_errors_as_ours(name, "read"):
            before = decode_index(fetch_small(name, INDEX, remote.sha, LARGEST_INDEX, repo_type="dataset"), name)
        # The checksum of a pack in the repository is known, so it need not be written again.
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


def _finish(stage: Staged, name: str, packs: Mapping[str, Pack], remote: RemoteCommit | None) -> None:
    """Write the card and, last, the manifest."""
    paths = {one.path for one in stage.manifest.files}
    records = sum(pack.bytes for pack in packs.values())
    (stage.folder / CARD).write_bytes(card(name, stage.manifest, paths, records_bytes=records, skipped=stage.skipped))
    (stage.folder / NAME).write_bytes(stage.manifest.encoded())
    stage.sources |= {CARD: stage.folder / CARD, NAME: stage.folder / NAME}


def _planned(stage: Staged, remote: RemoteCommit | None) -> _Plan:
    """The differences from the repository; only files that its manifest names are removed."""
    wanted = {one.path: one for one in stage.manifest.files}
    for path in (CARD, NAME):
        source = stage.sources[path]
        wanted[path] = FileEntry(path, source.stat().st_size, file_sha256(source), "")
    if remote is None:
        return _Plan(wanted, [])
    sent = {path: one for path, one in wanted.items() if not _is_there(remote, one, stage.sources.get(path))}
    before = {one.path for one in remote.manifest.files} if remote.manifest is not None else set()
    return _Plan(sent, sorted((before - wanted.keys()) & remote.files.keys()))


def _is_there(remote: RemoteCommit, wanted: FileEntry, source: Path | None) -> bool:
    there = remote.files.get(wanted.path)
    if there is None or there.size != wanted.bytes:
        return False
    if there.sha256 is not None:
        return there.sha256 == wanted.sha256
    return source is not None and there.oid == _blob_id(source)


def _blob_id(path: Path) -> str:
    """Git's blob id of a file."""
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
    remote: RemoteCommit | None,
    options: PushOptions,
) -> str:
    """Upload, then commit; returns the sha of the commit. Raises AtlasError."""
    api = HfApi()
    with hub_errors_as_ours(name, "write to"):
        if remote is None:
            api.create_repo(name, repo_type="dataset", private=options.private or None, exist_ok=True)
    head = remote.sha if remote is not None else resolve(Address(name))
    if not plan.sent and not plan.removed:
        return head
    additions = _sent(api, folder, name, stage, packs, plan)
    operations: list[CommitOperationAdd | CommitOperationDelete] = list(additions)
    operations += [CommitOperationDelete(path) for path in plan.removed]
    summary = f"Generation {stage.manifest.generation}: {stage.manifest.counts.get('models', 0)} models"
    with hub_errors_as_ours(name, "write to"):
        try:
            made: CommitInfo = api.create_commit(
                name, operations, commit_message=summary, repo_type="dataset", parent_commit=head
            )
            return str(made.oid)
        except HfHubHTTPError as error:
            if error.response.status_code < 500 and error.response.status_code not in (408, 412):
                raise
            return _head_if_committed(name, head, stage.manifest, error)
        except Exception as error:  # the commit may have been made although its answer was lost
            return _head_if_committed(name, head, stage.manifest, error)


def _sent(
    api: HfApi, folder: AtlasFolder, name: str, stage: Staged, packs: Mapping[str, Pack], plan: _Plan
) -> list[CommitOperationAdd]:
    """Upload the files of the commit; packs are written to disk one at a time."""
    plain = [path for path in sorted(plan.sent, key=lambda path: -plan.sent[path].bytes) if path not in packs]
    additions = [CommitOperationAdd(path, stage.sources[path]) for path in plain]
    with hub_errors_as_ours(name, "write to"):
        api.preupload_lfs_files(name, additions, repo_type="dataset", free_memory=False)
    for path in sorted(plan.sent.keys() & packs.keys()):
        target = stage.folder / path
        write_pack(packs[path], folder.root, target)
        if file_sha256(target) != plan.sent[path].sha256:
            raise AtlasError(
                f"Records of {folder.root} changed while they were being pushed.", "Run it again when no build writes."
            )
        addition = CommitOperationAdd(path, target)
        with hub_errors_as_ours(name, "write to"):
            api.preupload_lfs_files(name, [addition], repo_type="dataset", free_memory=False)
        target.unlink()
        additions.append(addition)
    return additions


def _head_if_committed(name: str, head: str, manifest: Manifest, error: Exception) -> str:
    """The head of the repository if it is our commit, else raise ``error`` again."""
    try:
        address = Address(name)
        sha = resolve(address)
        there = read_commit(address, sha).manifest if sha != head else None
        if there is not None and there.encoded() == manifest.encoded():
            return sha
    except AtlasError:
        pass
    raise error
