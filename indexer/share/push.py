"""`index push`: publish one generation of an atlas as a dataset repository on the Hub.

Files are uploaded first, where they are not visible; then one commit is made whose parent is the head that was read;
then the tag. So readers see the atlas before or after the push, never a mixture, and another push is not overwritten.
The Hub's client uploads the files and makes the commit. It gets those that the repository lacks: a dry run shows them,
and packs are written to disk one at a time, only if they are needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.utils.sha import git_hash

from indexer.arguments import plain_arguments
from indexer.atlas import DATABASE, AtlasFolder
from indexer.builds.report import Progress, Watcher
from indexer.console.options import with_options
from indexer.errors import AtlasError, Failed, ModelError, without_user
from indexer.network.hub_errors import as_user_error
from indexer.network.hub_requests import fetch_small
from indexer.network.session import current_session, install_session
from indexer.quantities import some_of
from indexer.share.card import card
from indexer.share.contents import packable
from indexer.share.manifest import NAME, RECORDS, FileEntry
from indexer.share.options import PushOptions
from indexer.share.packs import (
    INDEX,
    LARGEST_INDEX,
    Pack,
    decode_index,
    encode_index,
    is_on_disk,
    plan_packs,
    write_pack,
)
from indexer.share.repository import (
    LIMITS,
    Address,
    RemoteCommit,
    our_progress_bars,
    read_commit,
    resolve,
    tags,
    translated_hub_errors,
)
from indexer.share.staging import Staged, staged
from indexer.sources.registry import ModelRef, page_of
from indexer.sources.rows import row_of
from indexer.storage.checksums import file_sha256

_CARD = "README.md"

Say = Callable[[str], None]


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


@plain_arguments
@with_options(PushOptions)
def push(
    name: str, atlas: str | Path = "atlas", *, progress: Progress | None = None, options: PushOptions
) -> PushReport:
    """Publish the atlas as the dataset ``name`` (OWNER/NAME) on the Hub, in one commit: what `index push` does.

    Raises AtlasError, with nothing visible on the Hub, if this account may not write there, if the repository holds a
    newer atlas or something else (unless ``force``), or if another push was published in the meantime.
    """
    started, say, folder = time.monotonic(), Watcher(progress).say, AtlasFolder(atlas)
    address = Address.parse(name)
    if address.revision:
        hint = f"index push {address.name} --tag TAG"
        raise AtlasError(f"{name} names a revision, but a push makes a new one.", hint)
    install_session(LIMITS, say)
    with staged(folder, with_records=options.with_records) as stage:
        _require_shareable(stage, options)
        try:
            remote = read_commit(address, resolve(address))
        except AtlasError as error:
            cause = error.__cause__
            if not isinstance(cause, RepositoryNotFoundError) or isinstance(cause, GatedRepoError):
                raise
            remote = None  # it does not exist, or is not visible to this account
        if remote is not None and not options.force:
            _require_no_newer(remote, stage)
        known_tags = tags(address.name) if remote is not None else {}
        tag = _tag_to_set(remote, stage, known_tags, options.tag, say)
        packs = _complete(stage, address.name, remote, options, say)
        sent, removed = _changes(stage, remote)
        sha, changes = None, []
        if options.dry_run:
            changes = [{"path": path, "bytes": entry.bytes, "change": "send"} for path, entry in sorted(sent.items())]
            changes += [{"path": path, "bytes": 0, "change": "remove"} for path in removed]
        else:
            api = HfApi(**current_session().hub)
            with our_progress_bars(), translated_hub_errors(address.name, "write to"):
                if remote is None:
                    private = options.private or None
                    api.create_repo(address.name, repo_type="dataset", private=private, exist_ok=True)
                sha = remote.sha if remote is not None else resolve(Address(address.name))
                if sent or removed:
                    sha = _commit(api, address.name, stage, packs, sent, removed, sha)
                if tag is not None and tag not in known_tags:
                    api.create_tag(address.name, tag=tag, revision=sha, repo_type="dataset", exist_ok=True)
        return PushReport(
            repository=address.name,
            url=f"{without_user(current_session().endpoint)}/datasets/{address.name}",
            commit=sha,
            tag=tag,
            generation=stage.manifest.generation,
            models=stage.manifest.counts.get("models", 0),
            files=len(stage.manifest.files) + 1,
            bytes=sum(entry.bytes for entry in stage.manifest.files),
            sent_files=len(sent),
            sent_bytes=sum(entry.bytes for entry in sent.values()),
            removed_files=len(removed),
            seconds=round(time.monotonic() - started, 2),
            changes=changes,
        )


def _require_shareable(stage: Staged, options: PushOptions) -> None:
    """Raise AtlasError if private models would be pushed without the option that allows it."""
    for models, is_wanted, reason, flag in (
        (
            stage.private,
            options.with_private,
            "are private or gated on the Hub, or in no listing",
            "--with-private",
        ),
        (stage.local, options.with_local, "were added from local folders", "--with-local"),
        (stage.elsewhere, options.with_local, "come from another source than the Hub", "--with-local"),
    ):
        if models and not is_wanted:
            raise AtlasError(
                f"This atlas holds models that {reason}: {some_of(models)}. "
                "Every reader would see their names, vectors and cards.",
                f"Remove them (index remove {models[0]}), or push them anyway with {flag}.",
            )
    if stage.with_path:
        raise AtlasError(
            f"The cards or adapter_config.json of {some_of(stage.with_path)} hold paths of this machine.",
            f"Remove each and add it again: index remove {stage.with_path[0]}, then index add FOLDER.",
        )
    for base in () if options.with_private else stage.manifest.commits:
        if page_of(base) is None:
            raise AtlasError(f"The base {base} is not on the Hub.", "Push it anyway with --with-private.")
        try:
            row = row_of(ModelRef.of_atlas(base))
        except ModelError as error:
            if isinstance(error, Failed) and error.reason != "not_found":
                raise as_user_error(error, f"the base model {base}") from error
            continue
        if row.get("private") or (row.get("gated") and options.with_records):
            why = "private" if row.get("private") else "gated, and its block matrices are among the records"
            raise AtlasError(f"The base {base} is {why}.", "Push it anyway with --with-private.")


def _require_no_newer(remote: RemoteCommit, stage: Staged) -> None:
    """Raise AtlasError if the repository holds something else, or an atlas that a push must not replace."""
    name, pushed = remote.address.name, remote.manifest
    if pushed is None:
        if not remote.files.keys() - {".gitattributes", _CARD}:  # only what the Hub made itself
            return
        raise AtlasError(
            f"The dataset {name} is not an atlas: it has {len(remote.files)} files, but no {NAME}.",
            "Choose another name; --force adds the atlas to its files.",
        )
    staged = stage.manifest
    if pushed.source == staged.source:
        return
    for base, commit in pushed.commits.items():
        if staged.commits.get(base, commit) != commit:
            raise AtlasError(
                f"{name} holds an atlas of {base} at another commit ({commit[:12]}, here {staged.commits[base][:12]}).",
                "Choose another name; --force replaces it.",
            )
    if lost := sorted(pushed.commits.keys() - staged.commits.keys()):
        raise AtlasError(
            f"{name} holds an atlas of {', '.join(lost[:3])}, which this one lacks.",
            "Choose another name, or pull and `index merge` them; --force replaces it.",
        )
    if pushed.generation > staged.generation or (pushed.published, pushed.generation) > (
        staged.published,
        staged.generation,
    ):
        raise AtlasError(
            f"{name} holds a newer atlas: generation {pushed.generation} of {pushed.published}, "
            f"here {staged.generation} of {staged.published}.",
            "Pull it and build on it, or choose another name; --force replaces it.",
        )


def _tag_to_set(
    remote: RemoteCommit | None, stage: Staged, commits_of_tags: Mapping[str, str], tag_asked: str | None, say: Say
) -> str | None:
    """The tag of this push; ``commits_of_tags`` are the existing ones.

    If the tag exists and names something else, the default tag is not set, and a chosen one raises AtlasError.
    """
    tag = tag_asked or f"g{stage.manifest.generation}"
    if remote is None or tag not in commits_of_tags:
        return tag
    if commits_of_tags[tag] == remote.sha and remote.manifest and remote.manifest.source == stage.manifest.source:
        return tag
    if tag_asked is None:
        say(f"the tag {tag} already names another atlas and is not moved: choose one with --tag")
        return None
    raise AtlasError(f"{remote.address.name} already has a tag {tag}, of another commit.", "Choose another --tag.")


def _complete(stage: Staged, name: str, remote: RemoteCommit | None, options: PushOptions, say: Say) -> dict[str, Pack]:
    """Add what depends on the repository: packs of records, which are returned by path, the card and the manifest."""
    pushed_manifest = remote.manifest if remote is not None else None
    # Keep the pushed file of an unchanged database: rewritten, it would never have the same bytes.
    pushed = (
        pushed_manifest.file(DATABASE)
        if pushed_manifest is not None and pushed_manifest.source == stage.manifest.source != ""
        else None
    )
    if remote is not None and pushed is not None and _is_there(remote, pushed, None):
        files = tuple(pushed if entry.path == DATABASE else entry for entry in stage.manifest.files)
        stage.manifest = replace(stage.manifest, files=files)
    packs: dict[str, Pack] = {}
    if options.with_records:
        packs = _add_packs(stage, remote, options.pack_bytes)
    elif pushed_manifest is not None and pushed_manifest.files_of(RECORDS):
        say("an earlier push included records, this one does not: --with-records sends them")
    manifest, paths = stage.manifest, {entry.path for entry in stage.manifest.files}
    records = sum(pack.bytes for pack in packs.values())
    stage.sources[_CARD], stage.sources[NAME] = stage.folder / _CARD, stage.folder / NAME
    stage.sources[_CARD].write_bytes(card(name, manifest, paths, records_bytes=records, skipped=stage.skipped))
    stage.sources[NAME].write_bytes(manifest.encoded())
    return packs


def _changes(stage: Staged, remote: RemoteCommit | None) -> tuple[dict[str, FileEntry], list[str]]:
    """The files that the repository lacks, by path, and the paths of those that this atlas no longer has."""
    staged = {entry.path: entry for entry in stage.manifest.files}
    for path in (_CARD, NAME):
        source = stage.sources[path]
        staged[path] = FileEntry(path, source.stat().st_size, file_sha256(source), "")
    if remote is None:
        return staged, []
    sent = {path: entry for path, entry in staged.items() if not _is_there(remote, entry, stage.sources.get(path))}
    # Files that no manifest names are left in the repository.
    before = {entry.path for entry in remote.manifest.files} if remote.manifest is not None else set()
    return sent, sorted((before - staged.keys()) & remote.files.keys())


def _add_packs(stage: Staged, remote: RemoteCommit | None, pack_bytes: int) -> dict[str, Pack]:
    """Plan the packs of records and add them and their index to the manifest; returns them by path."""
    least = pack_bytes // 2  # bytes of a full pack
    pushed_packs: dict[str, FileEntry] = {}
    before: dict[str, Pack] = {}
    if remote is not None and remote.manifest is not None and INDEX in remote.files:
        name = remote.address.name
        with translated_hub_errors(name, "read"):
            before = decode_index(fetch_small(name, INDEX, remote.sha, LARGEST_INDEX, repo_type="dataset"), name)
        # The checksum of a full pack in the repository is believed; a smaller one is read again, because a record may
        # have changed since and still be as long.
        pushed_packs = {
            path: entry
            for path, pack in before.items()
            if (entry := remote.manifest.file(path)) is not None
            and (pack.bytes >= least or is_on_disk(pack, [stage.atlas.root], entry))
        }
    files = {
        path: source.stat().st_size
        for path, source in packable(stage.atlas)
        if source.name.partition(".")[0] in stage.digests
    }
    if not files:
        raise AtlasError(f"{stage.atlas.root} holds no records to push.", "Leave out --with-records.")
    packs = plan_packs(files, (before[path] for path in pushed_packs), pack_bytes, least)
    index = stage.folder / INDEX
    index.parent.mkdir(parents=True, exist_ok=True)
    index.write_bytes(encode_index(packs))
    stage.add(INDEX, RECORDS)
    for pack in packs:
        entry = pushed_packs.get(pack.path) or FileEntry(pack.path, *write_pack(pack, [stage.atlas.root]), RECORDS)
        stage.manifest = replace(stage.manifest, files=(*stage.manifest.files, entry))
    return {pack.path: pack for pack in packs}


def _is_there(remote: RemoteCommit, entry: FileEntry, source: Path | None) -> bool:
    """Whether the repository has this file: by its sha256 in LFS, else by git's blob id of ``source``."""
    listed_file = remote.files.get(entry.path)
    if listed_file is None or listed_file.size != entry.bytes:
        return False
    if listed_file.sha256 is not None or source is None:
        return listed_file.sha256 == entry.sha256
    return listed_file.oid == git_hash(source.read_bytes())


def _commit(
    api: HfApi,
    name: str,
    stage: Staged,
    packs: Mapping[str, Pack],
    sent: Mapping[str, FileEntry],
    removed: Sequence[str],
    head: str,
) -> str:
    """Upload the files, then make one commit on top of ``head``; returns its sha."""
    additions = [CommitOperationAdd(path, stage.sources[path]) for path in sent if path not in packs]
    for path in sorted(sent.keys() & packs.keys()):  # packs are written to disk one at a time
        target = stage.folder / path
        with target.open("wb") as file:
            _, sha256 = write_pack(packs[path], [stage.atlas.root], file)
        if sha256 != sent[path].sha256:
            raise AtlasError(
                f"Records of {stage.atlas.root} changed while they were being pushed.",
                "Run it again when no build writes.",
            )
        addition = CommitOperationAdd(path, target)
        api.preupload_lfs_files(name, [addition], repo_type="dataset", free_memory=False)
        target.unlink()
        additions.append(addition)
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        *additions,
        *(CommitOperationDelete(path) for path in removed),
    ]
    summary = f"Generation {stage.manifest.generation}: {stage.manifest.counts.get('models', 0)} models"
    try:
        commit = api.create_commit(name, operations, commit_message=summary, repo_type="dataset", parent_commit=head)
        return str(commit.oid)
    except Exception as error:
        if isinstance(error, HfHubHTTPError) and error.response.status_code < 500:
            if error.response.status_code not in (408, 412):
                raise
        # The commit may have been made although its answer was lost: then it is the head now.
        with suppress(AtlasError):
            sha = resolve(Address(name))
            manifest = read_commit(Address(name), sha).manifest if sha != head else None
            if manifest is not None and manifest.encoded() == stage.manifest.encoded():
                return sha
        raise
