"""The Hugging Face Hub, or a mirror of it, and its cache on this machine."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from indexer.errors import AtlasError, Failed, ModelError, Skipped, UnknownRevision, system_errors, without_user
from indexer.hub_ids import is_hub_id, without_address
from indexer.machine import refuses_connections
from indexer.sources.registry import ModelRef
from indexer.sources.source import LONGEST_REVISION, BaseFacts, Row, Source, Version, whole_file
from indexer.untrusted import load_json, shown

if TYPE_CHECKING:
    from indexer.network.byterange import ByteSource, LocalFile
    from indexer.network.retries import RetryPolicy
    from indexer.sources.questions import CrawlProgress, CrawlRequest, Page, RowCheck

# If anything useful is in the cache, one of these files is.
_LIKELY = (
    "config.json",
    "adapter_config.json",
    "model_index.json",
    "model.safetensors",
    "adapter_model.safetensors",
    "pytorch_model.bin",
    "adapter_model.bin",
)


class Hub(Source):
    """Models on the Hub, by ``owner/name``. What asks it is imported then: a question of an atlas needs none of it."""

    title = "the Hub"
    kind = "a Hub id"
    examples = ("owner/name", "owner/name@revision", "its address")
    access = "; for a private model, log in with `hf auth login`"
    lists = checks_rows = True
    is_remote = is_public = True

    # ---- ids

    def valid_id(self, text: str) -> bool:
        """``owner/name``, or an old id without an owner."""
        return is_hub_id(text)

    def parse(self, text: str) -> ModelRef | None:
        """An id, with or without a revision, or the address of a page."""
        identifier, _, revision = without_address(text).partition("@")
        if not is_hub_id(identifier) or len(revision) > LONGEST_REVISION:
            return None
        return ModelRef(identifier, revision or None)

    def author(self, identifier: str) -> str:
        """The owner."""
        return identifier.partition("/")[0] if "/" in identifier else ""

    def page(self, identifier: str, endpoint: str | None = None) -> str | None:
        """Its page on the Hub, or on the mirror at ``endpoint``."""
        return f"{endpoint or 'https://huggingface.co'}/{identifier}"

    def package_url(self, identifier: str, commit: str | None) -> str | None:
        """Of the type huggingface. An id has no character that would need an escape."""
        return f"pkg:huggingface/{identifier}" + (f"@{commit.lower()}" if commit else "")

    # ---- whether it can be asked

    @property
    def offline(self) -> str:
        """Whether HF_HUB_OFFLINE is set."""
        from huggingface_hub import constants

        return "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else ""

    def unreachable(self) -> str:
        """Also if the endpoint refuses connections."""
        from huggingface_hub import constants

        refused = not self.offline and refuses_connections(constants.ENDPOINT)
        return f"{without_user(constants.ENDPOINT)} cannot be reached" if refused else self.offline

    def explain(self, error: ModelError, reference: ModelRef) -> AtlasError:
        """Names the nearest ids where the Hub does not know the model."""
        from indexer.network.hub import unknown_model

        is_unknown = error.reason == "not_found" and not isinstance(error, UnknownRevision)
        return unknown_model(reference.id) if is_unknown else super().explain(error, reference)

    def stopped(self, error: ModelError, what: str) -> AtlasError:
        """Names the endpoint, and what to do about it."""
        from indexer.network.hub_errors import as_user_error

        return as_user_error(error, what)

    # ---- models

    def row(self, reference: ModelRef, *, whole: bool = True) -> Row:
        """Its row with the sizes and hashes of its files, under its present id."""
        from indexer.network.hub import model_row

        return model_row(reference.id, reference.revision)

    def open(
        self,
        reference: ModelRef,
        *,
        commit: str | None = None,
        filenames: Sequence[str] | None = None,
        retries: RetryPolicy | None = None,
    ) -> Version:
        """Its files on the Hub, or in the cache if they are there; offline only there."""
        from indexer.network.hub_requests import fetch_small
        from indexer.network.remote_file import RemoteFile

        if self.offline:
            return self._in_cache_only(reference, commit)
        if commit is None or filenames is None:
            commit, filenames = _ask_for_files(reference, commit)
        name, at = reference.id, str(commit)

        def open_file(path: str) -> ByteSource:
            return _cached_file(name, path, at) or RemoteFile(name, path, at, retries=retries)

        def read_small(path: str, limit: int) -> bytes:
            if (file := _cached_file(name, path, at)) is not None:
                return whole_file(file, limit)
            return fetch_small(name, path, at, limit, retries=retries, stay=True)

        return Version(commit, filenames, open_file, read_small=read_small, subfolder=reference.subfolder)

    def read_small(self, reference: ModelRef, path: str, commit: str, limit: int) -> bytes:
        """One file, in one request."""
        from indexer.network.hub_requests import fetch_small

        return fetch_small(reference.id, path, commit, limit)

    def conversion(self, reference: ModelRef) -> str | None:
        """The pull request of the Hub's converter."""
        from indexer.network.hub import conversion_revision

        return conversion_revision(reference.id)

    def keep(self, reference: ModelRef, commit: str | None, paths: Collection[str]) -> None:
        """Downloads them into the Hugging Face cache."""
        from huggingface_hub import hf_hub_download

        from indexer.network.hub_errors import model_errors
        from indexer.network.session import current_session, ensure_session

        ensure_session()
        hub = current_session().hub
        with model_errors():
            for path in paths:
                hf_hub_download(reference.id, path, revision=commit, **hub)

    def _in_cache_only(self, reference: ModelRef, commit: str | None) -> Version:
        """The files of a model in the cache. Raises Failed("network") if it is not there."""
        from indexer.network.byterange import LocalFile
        from indexer.regular_files import files_below

        cached = (
            _in_cache(reference.id, str(Path(reference.subfolder) / name), commit or reference.revision)
            for name in _LIKELY
        )
        found = next((path for path in cached if path is not None), None)
        if found is None:
            raise Failed(
                "network", f"{reference.id} is not in the cache, and HF_HUB_OFFLINE forbids asking the Hub for it"
            )
        folder, snapshot = found.parent, found.parents[len(Path(reference.subfolder).parts)]
        with system_errors(lambda why: Failed("not_found", f"{shown(folder)} cannot be listed: {why}")):
            names = files_below(folder)
        return Version(
            snapshot.name,
            names,
            lambda path: LocalFile(folder / path, path),
            lacking="in the cache; HF_HUB_OFFLINE forbids asking the Hub",
        )

    def kept_base(self, name: str) -> BaseFacts | None:
        """As it lies in the cache."""
        from indexer.sources.bases import LARGEST_CONFIG, component_of, facts_from

        reference = ModelRef(without_address(name).partition("@")[0])
        if not is_hub_id(reference.id):
            return None
        try:
            version = self._in_cache_only(reference, None)
            component = component_of(version.names)
            path = f"{component}/config.json" if component else "config.json"
            config = load_json(version.read(path, LARGEST_CONFIG))
        except (ModelError, ValueError):
            return None
        row: Row = {
            "id": reference.id,
            "sha": version.commit,
            "siblings": [{"rfilename": name} for name in sorted(version.names)],
        }
        with suppress(AtlasError):
            return facts_from(row, (), config, component)
        return None

    # ---- what descends from a base

    def base(self, name: str) -> BaseFacts:
        """With its former ids; offline as it is in the cache."""
        from indexer.sources.hub_base import resolve_base

        if not self.offline:
            return resolve_base(name)
        if (cached := self.kept_base(name)) is not None:
            return cached
        known = without_address(name).partition("@")[0]
        raise AtlasError(f"The base {known} is not in the cache, and {self.offline}.", f"Unset it to ask {self.title}.")

    def list(self, request: CrawlRequest, progress: CrawlProgress) -> Iterator[Page]:
        """A crawl; see ``crawl``."""
        from indexer.sources.crawl import crawl

        return crawl(request, progress)

    def list_type(
        self, model_type: str, request: CrawlRequest, progress: CrawlProgress, check: RowCheck
    ) -> Iterator[Page]:
        """By the tag of the architecture."""
        from indexer.sources.crawl import answers
        from indexer.sources.questions import Question

        return answers(Question("weights", model_type), request, progress, check)

    def count_children(self, identifier: str) -> dict[str, int]:
        """As the Hub counts them."""
        from indexer.network.hub import count_children

        return count_children(identifier)

    def mirrors(self, ids: Iterable[str]) -> tuple[str, ...]:
        """By the table ``mirrors.toml``."""
        from indexer.sources.mirrors import known_mirrors

        return known_mirrors(ids)


def _ask_for_files(reference: ModelRef, commit: str | None) -> tuple[str, list[str]]:
    """The commit and the file names. Raises ModelError."""
    from huggingface_hub import HfApi

    from indexer.network.hub_errors import model_errors
    from indexer.network.session import current_session, ensure_session

    ensure_session()
    with model_errors(reference.id + (f" at {shown(reference.revision)}" if reference.revision else "")):
        info = HfApi(**current_session().hub).model_info(reference.id, revision=commit or reference.revision)
    if not info.sha:
        raise Failed("server_error", f"the Hub names no commit of {shown(reference.id)}")
    if info.id != reference.id and is_hub_id(str(info.id)):
        raise Skipped("renamed", f"the model is called {info.id} now")
    return info.sha, [sibling.rfilename for sibling in info.siblings or []]


def _cached_file(identifier: str, path: str, commit: str) -> LocalFile | None:
    from indexer.network.byterange import LocalFile

    path_in_cache = _in_cache(identifier, path, commit)
    return LocalFile(path_in_cache, path) if path_in_cache else None


def _in_cache(identifier: str, path: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    from indexer.network.hub_errors import model_errors

    with model_errors():
        path_in_cache = try_to_load_from_cache(identifier, path, revision=revision)
    return Path(path_in_cache) if isinstance(path_in_cache, str) else None
