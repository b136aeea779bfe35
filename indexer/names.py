"""Names that everything shares: of models, deltas, families and options."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from indexer.errors import AtlasError, Skipped, without_user

SORTS = ("downloads", "created", "likes")
DISCOVERIES = ("tags", "names", "weights")
EXECUTORS = ("local", "dask")
READS = ("sample", "full")
# ``copy_evidence`` of an adapter whose change is zero, as before training (every B is), and of one whose change is so
# small that float32 may lose it.
UNTRAINED, UNMEASURABLE = "untrained", "unmeasurable"

# Connections to one host at a time: the Hub's edge is reported to throttle more.
CONNECTIONS = 8
RELATIONS = ("finetune", "adapter", "merge", "quantized")
# Those that a crawl lists unless others are asked for: the weights of a quantised copy cannot be compared.
DEFAULT_RELATIONS = ("finetune", "adapter", "merge")

# Bounds of a crawl unless others are given: models asked for their children, and steps from the base. Without a token
# the Hub answers 500 questions in five minutes.
MOST_QUESTIONS = 500
MOST_STEPS = 5

# The order of families wherever they are listed or concatenated; docs/families.md says what they are.
FAMILIES = (
    "query_a",
    "query",
    "key_value_a",
    "key",
    "value",
    "output_gate",
    "output",
    "ssm_gate",
    "ssm_input",
    "ssm_b",
    "ssm_c",
    "ssm_output",
    "conv_b",
    "conv_c",
    "conv_input",
    "conv_output",
    "cross_query",
    "cross_key",
    "cross_value",
    "cross_output",
    "gate",
    "feedforward1",
    "feedforward2",
    "expert_gate",
    "expert_feedforward1",
    "expert_feedforward2",
)

# The order of stacks: of text and speech models; of a U-Net; of transformers with streams for images and for texts; of
# models with towers side by side; of robot policies; of images in stages.
STACKS = (
    "", "encoder", "decoder", "down", "mid", "up", "image", "text", "single", "vision", "multimodal", "expert",
    "stage1", "stage2", "stage3", "stage4",
)  # fmt: skip

# What is measured of each layer of a model: the columns of depth profiles, on disk, in the database and in answers.
# Of each there may be an error; NULL if it was not asked for or says nothing.
MEASURES = (
    "tolerance",
    "tolerance_own",
    "readable",
    "recovered",
    "recovered_seed",
    "closer",
    "closer_ratio",
    "verified",
    "reach",
    "own",
    "start_share",
    "cka",
    "drift",
    "image_error",
)

# The rule of huggingface_hub.utils.validate_repo_id, which takes a second to import.
_ID_PART = r"\w(?:[\w.\-]{0,94}\w)?"
_HUB_ID = re.compile(rf"(?:{_ID_PART}/)?{_ID_PART}", re.ASCII)

# Prefix of local models, which were added from a folder; its path is private.
LOCAL = "local:"
_LOCAL_ID = re.compile(rf"{LOCAL}[\w.\-]{{1,96}}", re.ASCII)

# Sites from which people copy addresses, besides the endpoint in use.
_SITES = ("https://huggingface.co", "https://hf.co")
# Two spellings that are less similar than this are different names.
_LEAST_LIKENESS = 0.6
_LONGEST_REVISION = 250  # characters: branches and tags of git are files
# Models may be read from folders inside this one only; from no folder where it is ""; from any where it is None.
_folders: Path | str | None = None
_NO_MODELS = ("datasets", "spaces", "collections", "docs", "papers", "blog")


def family_key(stack: str, family: str) -> str:
    """``query`` for a model of one stack (""), ``encoder.query`` for one of several."""
    return f"{stack}.{family}" if stack else family


def family_order(stack: str, family: str) -> tuple[int, int]:
    """Sorts by STACKS, then by FAMILIES; names that this version does not know come last."""
    return (
        STACKS.index(stack) if stack in STACKS else len(STACKS),
        FAMILIES.index(family) if family in FAMILIES else len(FAMILIES),
    )


@dataclass(frozen=True)
class DeltaKey:
    """Names one weight change: ``stack`` is "" in a model of one stack, else one of STACKS."""

    stack: str
    layer: int
    family: str

    @property
    def family_key(self) -> str:
        """See :func:`family_key`."""
        return family_key(self.stack, self.family)

    @property
    def layer_key(self) -> str:
        """The layer, with its stack where there are several."""
        return f"{self.stack}.{self.layer}" if self.stack else str(self.layer)

    @property
    def sort_key(self) -> tuple[int, int, int]:
        """In the order of STACKS, then by depth, then in the order of FAMILIES."""
        return (STACKS.index(self.stack), self.layer, FAMILIES.index(self.family))

    def __str__(self) -> str:
        return f"{self.stack}.{self.layer}.{self.family}" if self.stack else f"{self.layer}.{self.family}"

    @staticmethod
    @lru_cache(maxsize=4096)  # every record has the same few hundred names
    def parse(text: str) -> DeltaKey:
        """The inverse of ``str``. Raises ValueError on anything else."""
        *stack, layer, family = text.split(".")
        if len(stack) > 1 or family not in FAMILIES or (stack and stack[0] not in STACKS):
            raise ValueError(f"{text!r} is not the name of a delta")
        return DeltaKey(stack[0] if stack else "", int(layer), family)


def read_folders_in(root: Path | None) -> None:
    """From now on this process reads models only from folders in ``root``; None: from no folder."""
    global _folders
    _folders = "" if root is None else root.resolve()


def folders_root() -> Path | None:
    """The folder outside of which no file of a model's folder may be opened; None if there is no such limit."""
    return _folders if isinstance(_folders, Path) else None


def _leads_out(text: str) -> AtlasError:
    return AtlasError(
        f"{text[:200]} leads out of {_folders} through a link, so nothing is read there.",
        "Copy what it names into that folder.",
    )


def _folder_named(text: str) -> Path | None:
    """The folder that ``text`` names, if it exists and models may be read from it.

    Raises AtlasError if it lies in the folder of models by its path, but a link leads out.
    """
    if not text or _folders == "":  # an empty path would be the current folder
        return None
    try:
        path = Path(text).expanduser().resolve()
        if _folders is not None and not path.is_relative_to(_folders):
            typed = Path(os.path.normpath(Path(text).expanduser().absolute()))
            if typed.is_relative_to(_folders):
                raise _leads_out(text)
            return None
        return path if path.is_dir() else None
    except (OSError, RuntimeError, ValueError):
        return None  # too long for a path, or the home of an unknown user


@dataclass(frozen=True)
class ModelRef:
    """A model as a person names it: ``owner/name``, ``owner/name@revision``, its address, or a local folder."""

    id: str
    revision: str | None = None
    folder: Path | None = None
    subfolder: str = ""

    @classmethod
    def parse(cls, text: str) -> ModelRef:
        """Read what was typed; an existing folder wins over a Hub id of the same spelling.

        Raises AtlasError when it is neither.
        """
        if (folder := _folder_named(text)) is not None:
            return cls(id=str(folder), folder=folder)
        if is_local_id(text):
            return cls(id=text)
        identifier, _, revision = without_address(text).partition("@")
        if not is_hub_id(identifier) or len(revision) > _LONGEST_REVISION:
            what = repr(text) if len(text) <= 200 else f"A name of {len(text):,} characters"
            if _folders is not None:
                why = (
                    f"neither a Hub id nor a folder in {_folders}"
                    if _folders
                    else "not a Hub id; models are not read from folders here"
                )
                raise AtlasError(f"{what} is {why}.", "Give owner/name, or owner/name@revision.")
            raise AtlasError(
                f"{what} is neither a folder here nor a Hub id.",
                "Give owner/name, owner/name@revision, its address, or the path of a checkpoint folder.",
            )
        return cls(id=identifier, revision=revision or None)

    @classmethod
    def of_atlas(cls, name: str) -> ModelRef:
        """A model by its name in an atlas; never a local folder, whatever exists on this machine.

        Raises Skipped("malformed") if no model can have this name: the atlas may not be trustworthy.
        """
        if not is_hub_id(name) and not is_local_id(name):
            raise Skipped("malformed", f"the atlas names a model {name[:100]!r}, which is not a Hub id")
        return cls(id=name)


def is_hub_id(text: str) -> bool:
    """Whether ``text`` can be a Hub model id: ``name`` or ``owner/name``, never a path that climbs."""
    return bool(_HUB_ID.fullmatch(text)) and ".." not in text and "--" not in text and not text.endswith(".git")


def is_local_id(text: str) -> bool:
    """Whether ``text`` is the atlas's name of a model from a folder: ``local:NAME``."""
    return bool(_LOCAL_ID.fullmatch(text))


def without_address(text: str) -> str:
    """The model of a page's address: ``owner/name``, or ``owner/name@revision`` for ``…/tree/…``.

    Knows pages of huggingface.co, hf.co and of the endpoint in use (HF_ENDPOINT), with or without https://; any other
    text is returned as it is. Raises AtlasError for the address of something other than a model.
    """
    found = _path_on_site(text)
    if found is None:
        return text
    parts = [unquote(part) for part in found.split("/") if part]
    if len(parts) < 2 or parts[0] in _NO_MODELS:
        raise AtlasError(
            f"{text[:200]!r} is not the address of a model.", "A model's page is huggingface.co/OWNER/NAME."
        )
    identifier, rest = "/".join(parts[:2]), parts[2:]
    if len(rest) < 2 or rest[0] not in ("tree", "blob", "resolve", "commit"):
        return identifier
    revision = "/".join(rest[1:4]) if rest[1] == "refs" else rest[1]
    return f"{identifier}@{revision}"


def _path_on_site(text: str) -> str | None:
    """The path of an address on a known site; None where ``text`` is not one."""
    for site in (*_SITES, without_user(os.environ.get("HF_ENDPOINT", "").rstrip("/"))):
        address = urlsplit(site)
        if not address.netloc:
            continue
        bare = f"{address.netloc}{address.path}/"
        for prefix in (f"https://{bare}", f"http://{bare}", f"https://www.{bare}", bare):
            if text.lower().startswith(prefix.lower()):
                return re.split(r"[?#]", text[len(prefix) :])[0]
    return None


def with_dots(name: str) -> str:
    """A name with ``.`` for ``___``, as folders of ModelScope spell it: ``Qwen/Qwen2___5-7B``."""
    return name.replace("___", ".")


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Up to three of ``names`` that are spelled like ``name``, nearest first.

    The larger similarity counts, of the two ids or of their parts after the owner: people mistype either.
    """
    found = []
    for other in names:
        if other != name:
            one, two = name.lower(), other.lower()
            pairs = ((one, two), (one.rpartition("/")[2], two.rpartition("/")[2]))
            likeness = max(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)
            if likeness >= _LEAST_LIKENESS:
                found.append((-likeness, other))
    return [other for _, other in sorted(found)[:3]]


def author_of(model_id: str) -> str:
    """The account a Hub id belongs to; "" for old ids without an owner, "local" for a folder."""
    if is_local_id(model_id) or model_id.startswith(("/", "\\")) or model_id[1:2] == ":":
        return "local"
    return model_id.partition("/")[0] if "/" in model_id else ""
