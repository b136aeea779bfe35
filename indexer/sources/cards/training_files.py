"""What the files beside a checkpoint say of its training: configurations, states and summaries of the tools in use.

The Trainer's state, YAML and JSON of axolotl, LLaMA-Factory, ms-swift, torchtune, TRL, mlx-lm and Lightning, summaries
of Weights & Biases, the parameters of an MLflow run, and the metadata that kohya's scripts and the modelspec put into a
safetensors file. ``training_files.toml`` says what the tools call the same thing. Everything is read as data and
bounded; ``training_args.bin`` is a pickle and is never opened.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import Any

from indexer.errors import without_user
from indexer.sources.cards.bounded_yaml import load_yaml
from indexer.sources.cards.datasets import is_placeholder
from indexer.sources.cards.paths import without_paths
from indexer.untrusted import MAX_INTEGER, Reader, is_too_deep, load_json, tidy

# Larger files are not read. The state of a run of 100,000 logged steps has 15 MB.
LARGEST_FILE = 24 << 20
MOST_SETTINGS = 400
MOST_TAGS = 50
_MOST_DATASETS = 50
_LONGEST_TEXT = 200
_MOST_CHARACTERS = 32 << 10  # of all other settings together
# Of the metadata of a safetensors file: pictures, and the framework of the tensors, which every file names.
_NOT_SETTINGS = ("ss_tag_frequency", "ss_bucket_info", "format")
_LOG = "\0log"  # the key of an object under which the start of its log is kept; no file has it
_FIRST_ENTRIES = 4
_LOG_TAIL = 256 << 10  # bytes of a log whose last lines are read

_JSON_NAMES = re.compile(
    r"(?:training_args|train_args|args|train_config|training_config|finetune_config|hparams|hyperparameters|sft_args"
    r"|wandb-summary|(?:all|train|eval|test)_results|adapter_config|trainer_state)\.json",
    re.IGNORECASE,
)
_YAML_NAMES = re.compile(
    r"(?:\w*_)?(?:config|args|hparams|recipe|train|sft|dpo|lora|qlora)(?:_config)?\.ya?ml", re.IGNORECASE
)
_LOG_NAMES = ("trainer_log.jsonl",)
_MLFLOW = re.compile(r"(params|metrics|tags)/(.+)", re.DOTALL)
_SECRET = re.compile(
    r"token(?!iz|s\b|_?type|_?id)|secret|passw|api_?key|credential|authorization|cookie", re.IGNORECASE
)
# What ties a run to a person or a machine and says nothing of the training.
_PRIVATE = re.compile(
    r"(?:wandb_|hub_|tags\.)?(?:user(?:_?name)?|e-?mail|host(?:_?name)?|entity|cwd|root|program|executable|git(?:\..*)?"
    r"|mlflow\.source\..*|mlflow\.user)",
    re.IGNORECASE,
)
# Keys of folders. The last part of an absolute path is kept only if it may name the data or the model. Else it is where
# a run was written, or where code lies, and may be the name of a team.
_FOLDER = re.compile(r"(?:.*[._])?\w*(?:dir|directory|folder|path)", re.IGNORECASE)
_OF_TRAINING = re.compile(
    r"(?!.*(?:out|log|save|cache|run)).*(?:data|model|base|checkpoint|pretrained|token|train|valid|eval)", re.IGNORECASE
)
# A path within a text, as in a command, and the address of a bucket.
_INNER_PATH = re.compile(
    r"(?<![\w./:\\])(?:(?!https?:)[a-z][a-z0-9+]{1,9}://[^\s,;'\"]*?|(?:~|[A-Za-z]:)?[/\\][^\s,;'\"]*?[/\\])"
    r"([^/\\\s,;'\"]*)(?=[\s,;'\"]|$)"
)
_FLAT_OBJECT = re.compile(r"\{[^{}]{1,20000}\}")
_SCALAR = re.compile(r'"(\w{1,40})"\s{0,20}:\s{0,20}(-?[\d.eE+\-]{1,30}|"[^"\\]{0,300}")\s{0,20}[,}]')
_DATA_FILE = re.compile(r"\.(?:jsonl?|csv|parquet|txt|tsv|arrow)$")
_NUMBERS = frozenset((
    "step", "max_steps", "epoch", "epochs", "learning_rate", "batch_size", "accumulation", "weight_decay", "warmup",
    "seed", "rank", "alpha", "length", "train_loss", "eval_loss", "best_metric",
))  # fmt: skip
_WHOLE = frozenset(("step", "max_steps", "batch_size", "accumulation", "seed", "rank", "length"))

Settings = dict[str, str | int | float | bool]
_Source = tuple[str, Settings, Mapping[str, Any]]  # a file: its name ("": the weights' header), settings, and content


@dataclass(frozen=True)
class Training:
    """How a model was trained, as the files beside it say; what they do not say is None or empty.

    Attributes:
        tool: the program that trained it, by its files and keys.
        base: the model that was tuned, as written; the path of a folder is cut to its name.
        datasets: the training data, as written, without paths.
        data_files: those of ``datasets`` that are files or folders of a machine, whose names mean nothing elsewhere.
        run: the name of the run.
        step, max_steps, epoch, epochs: how far the training had come, and how far it was meant to go.
        learning_rate, batch_size, accumulation, weight_decay, warmup, optimizer, scheduler, seed, length: as set. The
            batch is that of one device; ``warmup`` is a share if less than 1, and a number of steps otherwise.
        method, stage: of fine-tuning ("lora", "full") and of training ("sft", "dpo").
        rank, alpha: of an adapter.
        train_loss, eval_loss: the last that were logged.
        best_metric: the best value of the metric that chose the best checkpoint.
        best_checkpoint: the name of that checkpoint's folder.
        licence, author, trigger: as modelspec's metadata say.
        tags: the most frequent words of the captions of an image model's training data.
        run_id: what tells the run from others: the id that a tool gave it, else "".
        log: the first entries of its log, (step, training loss, norm of the gradient or None): checkpoints of one run
            share them.
        settings: every other setting by its name, scalars only.
        read: the names of the files that said something.
    """

    tool: str | None = None
    base: str | None = None
    datasets: tuple[str, ...] = ()
    data_files: tuple[str, ...] = ()
    run: str | None = None
    step: int | None = None
    max_steps: int | None = None
    epoch: float | None = None
    epochs: float | None = None
    learning_rate: float | None = None
    batch_size: int | None = None
    accumulation: int | None = None
    weight_decay: float | None = None
    warmup: float | None = None
    optimizer: str | None = None
    scheduler: str | None = None
    seed: int | None = None
    length: int | None = None
    method: str | None = None
    stage: str | None = None
    rank: int | None = None
    alpha: float | None = None
    train_loss: float | None = None
    eval_loss: float | None = None
    best_metric: float | None = None
    best_checkpoint: str | None = None
    licence: str | None = None
    author: str | None = None
    trigger: str | None = None
    tags: tuple[str, ...] = ()
    run_id: str | None = None
    log: tuple[tuple[float, float, float | None], ...] = ()
    settings: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    read: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.read)

    def to_dict(self) -> dict[str, Any]:
        """What is known, as a JSON object."""
        values = ((attribute.name, getattr(self, attribute.name)) for attribute in fields(self))
        return {
            name: [list(item) if isinstance(item, tuple) else item for item in value]
            if isinstance(value, tuple)
            else dict(value)
            if isinstance(value, Mapping)
            else value
            for name, value in values
            if value is not None and value != () and value != {}
        }


def is_training_file(name: str) -> bool:
    """Whether a file of a checkpoint's folder is one that ``read_training`` understands; ``name`` is relative to it."""
    last = name.rpartition("/")[2]
    return bool(
        _JSON_NAMES.fullmatch(last)
        or _YAML_NAMES.fullmatch(last)
        or last in _LOG_NAMES
        or (_MLFLOW.fullmatch(name) is not None)
    )


def read_training(
    contents: Iterable[tuple[str, bytes]],
    metadata: Mapping[str, str] | None = None,
    tracked: Mapping[str, Any] | None = None,
) -> Training:
    """What the files of one checkpoint say of its training.

    Args:
        contents: names and contents of files for which ``is_training_file`` is true, those nearest to the weights
            first: of two that say the same thing the first counts.
        metadata: the texts in the header of its safetensors file.
        tracked: the settings of its run, as a tracking server says them.

    Files that cannot be read say nothing. Never raises for what a file holds.
    """
    read: list[str] = []
    sources: list[_Source] = []
    for name, content in contents:
        if len(content) > LARGEST_FILE:
            continue
        loaded = _load(name, content)
        if flat := _flat(loaded):
            sources.append((name, flat, loaded))
            read.append(name.rpartition("/")[2])
    if metadata:
        loaded = _loaded_metadata(metadata)
        if flat := _flat(loaded):
            sources.append(("", flat, loaded))
            read.append("safetensors metadata")
    if tracked and (flat := _flat(tracked)):
        sources.append(("", flat, tracked))
        read.append("the tracked run")
    if not sources:
        return Training()
    values: dict[str, Any] = {"datasets": ()}
    used: set[str] = set()
    for kind, names in _tables()["fields"].items():
        if (stated := _first(sources, names, kind)) is not None:
            values[kind] = stated[1]
            used.add(stated[0])
    data = dict(values["datasets"])
    values |= {"datasets": tuple(data), "data_files": tuple(name for name, is_file in data.items() if is_file)}
    best = next((flat[key] for _, flat, _ in sources for key in ("best_model_checkpoint",) if key in flat), None)
    settings: Settings = {}
    characters_left = _MOST_CHARACTERS
    for key, value in ((key, value) for _, flat, _ in sources for key, value in flat.items()):
        if key in used or key in settings or key == "best_model_checkpoint" or len(settings) >= MOST_SETTINGS:
            continue
        characters_left -= len(key) + len(str(value))
        if characters_left >= 0:
            settings[key] = value
    return Training(
        **values,
        tool=_tool(sources),
        best_checkpoint=_last_part(str(best)) if best else None,
        tags=_caption_words(metadata or {}),
        log=next((log for _, _, loaded in sources if (log := loaded.get(_LOG))), ()),
        settings=settings,
        read=tuple(dict.fromkeys(read)),
    )


def with_tracked(stated: Mapping[str, Any], tracked: Any) -> Mapping[str, Any]:
    """What the files beside the weights state, completed by what a tracking server says; both as ``Training.to_dict``.

    Both may come from somebody else. What is no such object says nothing.
    """
    if not isinstance(tracked, Mapping):
        return stated
    settings: dict[str, Any] = {}
    for training in (stated, tracked):
        of_one = training.get("settings")
        if isinstance(of_one, Mapping):
            settings = {**of_one, **settings}
    read = [
        name for training in (stated, tracked) if isinstance(training.get("read"), list) for name in training["read"]
    ]
    return {**tracked, **stated, "settings": dict(list(settings.items())[:MOST_SETTINGS]), "read": read}


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(files("indexer.sources.cards").joinpath("training_files.toml").read_text(encoding="utf-8"))


# ---- one file


def _load(name: str, content: bytes) -> Mapping[str, Any]:
    """A file as an object; {} if it holds none."""
    last = name.rpartition("/")[2]
    if tracked := _MLFLOW.fullmatch(name):
        return _mlflow_value(tracked[1], tracked[2], content)
    text = content.decode("utf-8", errors="replace")
    try:
        if last in _LOG_NAMES:
            return _log_end(text)
        loaded = load_json(text) if last.endswith(".json") else load_yaml(text)
    except ValueError:
        return {}
    if not isinstance(loaded, dict) or is_too_deep(loaded):
        return {}
    if "wandb_version" in loaded or "_wandb" in loaded:
        loaded = {
            key: value["value"] if isinstance(value, dict) and "value" in value else value
            for key, value in loaded.items()
            if key not in ("wandb_version", "_wandb")
        }
    history = loaded.pop("log_history", None)
    loaded.pop(_LOG, None)
    return {**_history_end(history), **loaded, _LOG: _log_start(history)} if isinstance(history, list) else loaded


def _mlflow_value(kind: str, key: str, content: bytes) -> Mapping[str, Any]:
    """A parameter, the last value of a metric ("time value step" on each line), or a tag."""
    text = content[-_LOG_TAIL:].decode("utf-8", errors="replace").strip()
    if kind != "metrics":
        return {key if kind == "params" else f"tags.{key}": text}
    parts = text.rpartition("\n")[2].split()
    if len(parts) < 2 or (value := Reader().number(parts[1])) is None:
        return {}
    step = Reader().number(parts[2]) if len(parts) > 2 else None
    return {key: value} | ({"global_step": int(step)} if step is not None and 0 <= step <= MAX_INTEGER else {})


def _history_end(history: list[Any]) -> dict[str, Any]:
    """The last value of everything that a Trainer logged; of the learning rate, which decays, the largest."""
    end: dict[str, Any] = {}
    rates: list[float] = []
    for entry in history:
        if isinstance(entry, dict):
            end.update({key: value for key, value in entry.items() if isinstance(key, str)})
            if (rate := Reader().number(entry.get("learning_rate"))) is not None:
                rates.append(rate)
    if rates:
        end["learning_rate"] = max(rates)
    # Of the whole run the Trainer logs `train_loss`; of single steps `loss`, of which the last is the one to compare.
    if "loss" in end:
        end["train_loss"] = end.pop("loss")
    return end


def _log_start(history: list[Any]) -> tuple[tuple[float, float, float | None], ...]:
    """The first entries with a training loss, as ``Training.log``."""
    start: list[tuple[float, float, float | None]] = []
    reader = Reader()
    for entry in history[: 10 * _FIRST_ENTRIES]:
        if isinstance(entry, dict) and len(start) < _FIRST_ENTRIES:
            step, loss = (reader.number(entry.get(name)) for name in ("step", "loss"))
            if step is not None and loss is not None:
                start.append((step, loss, reader.number(entry.get("grad_norm"))))
    return tuple(start)


def _log_end(text: str) -> dict[str, Any]:
    """The last values of a log with one JSON object a line."""
    lines = text[-_LOG_TAIL:].splitlines()
    end: dict[str, Any] = {}
    for line in lines:
        try:
            entry = load_json(line)
        except ValueError:  # the first may be cut
            continue
        if isinstance(entry, dict) and not is_too_deep(entry):
            end.update(entry)
    if "current_steps" in end:
        end["global_step"] = end.pop("current_steps")
    if "total_steps" in end:
        end["max_steps"] = end.pop("total_steps")
    return end


def _loaded_metadata(metadata: Mapping[str, str]) -> dict[str, Any]:
    """The metadata of a safetensors file: texts, of which some are JSON. Captions and folders are read apart."""
    loaded: dict[str, Any] = {}
    for key, text in list(metadata.items())[: 10 * MOST_SETTINGS]:
        if key in _NOT_SETTINGS or len(text) > LARGEST_FILE:
            continue
        if key in ("ss_dataset_dirs", "ss_datasets"):
            loaded.setdefault("datasets", [])
            loaded["datasets"] += [f"./{name}" for name in _folders_of_data(text)]
        elif key.startswith(("ss_", "modelspec.")) or len(text) <= _LONGEST_TEXT:
            loaded[key] = text
    return loaded


def _folders_of_data(text: str) -> list[str]:
    """The names of kohya's folders of pictures, without the number of repeats in front ("10_cats" → "cats")."""
    value = _json_in(text)
    names: list[str] = []
    if isinstance(value, dict):
        names = [str(key) for key in value]
    elif isinstance(value, list):
        subsets = [one for entry in value if isinstance(entry, dict) for one in _listed(entry.get("subsets"))]
        for subset in subsets:
            directory = subset.get("image_dir") if isinstance(subset, dict) else None
            names += [directory] if isinstance(directory, str) else []
    return [re.sub(r"^\d+_", "", _last_part(name)) for name in names]


def _caption_words(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """The most frequent tags of the captions, over all folders."""
    text = metadata.get("ss_tag_frequency", "")
    value = _json_in(text) if len(text) <= LARGEST_FILE else None
    counts: dict[str, float] = {}
    for folder in value.values() if isinstance(value, dict) else ():
        for tag, count in folder.items() if isinstance(folder, dict) else ():
            if isinstance(count, int | float) and not isinstance(count, bool) and math.isfinite(count):
                name = tidy(str(tag), 80)
                counts[name] = counts.get(name, 0) + count
    counts.pop("", None)
    return tuple(sorted(counts, key=lambda name: (-counts[name], name))[:MOST_TAGS])


def _json_in(text: str) -> Any:
    try:
        value = load_json(text)
    except ValueError:
        return None
    return None if is_too_deep(value) else value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# ---- settings


def _flat(loaded: Mapping[str, Any]) -> Settings:
    """The scalars of an object by their dotted keys, without secrets, paths and what names a person or a machine."""
    flat: Settings = {}
    for key, value in _leaves(loaded, ""):
        if len(flat) >= MOST_SETTINGS:
            break
        if _SECRET.search(key) or _PRIVATE.fullmatch(key):
            continue
        if isinstance(value, str):
            shown = without_paths(without_user(value[: 4 * _LONGEST_TEXT]))
            is_place = shown != value or "://" in value
            if is_place and _FOLDER.fullmatch(key) and not _OF_TRAINING.match(key.rpartition(".")[2]):
                continue
            value = tidy(shown)
            value = tidy(_INNER_PATH.sub(r"./\1", value), _LONGEST_TEXT)
            if not value:
                continue
        elif not isinstance(value, bool) and not (math.isfinite(value) and abs(value) <= MAX_INTEGER):
            continue
        flat[tidy(key, _LONGEST_TEXT)] = value
    return flat


def _leaves(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """(dotted key, scalar); a short list of scalars is one text."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list):
        if value and all(isinstance(item, str | int | float) for item in value) and len(value) <= 50:
            yield prefix, ", ".join(str(item) for item in value)
    elif isinstance(value, str | int | float):
        yield prefix, value


# ---- a state of which only the ends are read


def state_from_ends(head: bytes, tail: bytes) -> bytes:
    """A Trainer's state made of its first and last bytes: its log has thousands of lines in between.

    Holds the entries of the log and the numbers that are whole in either.
    """
    first, last = (end.decode("utf-8", errors="replace") for end in (head, tail))
    texts = first, last.partition("}")[2]  # without the rest of an entry that is cut
    entries: list[Any] = []
    scalars: dict[str, Any] = {}
    for text in texts:
        for entry in _FLAT_OBJECT.findall(text):
            if isinstance(loaded := _json_in(entry), dict) and "step" in loaded:
                entries.append(loaded)
        outside = _FLAT_OBJECT.sub("", text)
        for name, value in _SCALAR.findall(outside.partition('"log_history"')[0] if text is first else outside):
            scalars[name] = _json_in(value)
    return json.dumps({**scalars, "log_history": entries}).encode()


def _first(sources: Iterable[_Source], names: list[str], kind: str) -> tuple[str, Any] | None:
    """The name and value of the first of some settings that a file states; None if none does."""
    for _, flat, loaded in sources:
        for name in names:
            if kind == "datasets":
                if stated := _datasets_in(_value_at(loaded, name)):
                    return name, stated
            elif name in flat and (value := _typed(flat[name], kind)) is not None:
                return name, value
    return None


def _typed(value: str | int | float | bool, kind: str) -> str | int | float | None:
    """A setting as its field has it; None if it is not of that kind."""
    if kind not in _NUMBERS:
        text = str(value) if not isinstance(value, bool) else ""
        text = _last_part(text) if kind == "base" else text
        return None if not text or (kind == "base" and is_placeholder(text)) else text
    number = Reader().number(value)
    if number is None or (kind in _WHOLE and (number != int(number) or abs(number) > MAX_INTEGER)):
        return None
    # -1 steps mean "as many as the epochs have".
    if number < 0 and kind not in ("train_loss", "eval_loss", "best_metric"):
        return None
    return int(number) if kind in _WHOLE else number


def _value_at(loaded: Mapping[str, Any], name: str) -> Any:
    """The value of a dotted key, of an object or of one whose key has the dots."""
    if name in loaded:
        return loaded[name]
    head, _, rest = name.partition(".")
    inner = loaded.get(head)
    return _value_at(inner, rest) if rest and isinstance(inner, Mapping) else None


def _datasets_in(value: Any) -> tuple[tuple[str, bool], ...]:
    """The names of data sets in a text with commas, a list, an object of shares, or a list of objects.

    With each comes whether it is that of a file or folder.
    """
    names: list[str] = []
    if isinstance(value, str):
        names = [value] if _looks_like_path(value) else value.split(",")
    elif isinstance(value, Mapping):
        keys = [value[key] for key in _tables()["dataset_keys"]["names"] if isinstance(value.get(key), str)]
        # {"owner/set": 0.5, …} gives each data set its share.
        names = keys[:1] or [key for key, share in value.items() if isinstance(share, int | float)]
    elif isinstance(value, list):
        return tuple(dict.fromkeys(name for one in value[:_MOST_DATASETS] for name in _datasets_in(one)))
    read = (_dataset_name(name.strip()) for name in names[:_MOST_DATASETS])
    cleaned = ((tidy(name, _LONGEST_TEXT), is_file) for name, is_file in read)
    return tuple(dict.fromkeys(one for one in cleaned if one[0] and not is_placeholder(one[0])))


def _dataset_name(text: str) -> tuple[str, bool]:
    """A data set without a path, a sample's size (ms-swift's "set#500") and a site in front ("hf://", "ms::").

    Also returns whether it was a path.
    """
    text = re.sub(r"^(?:hf://datasets/|hf://|hf::|ms::|https?://(?:www\.)?huggingface\.co/datasets/)", "", text)
    text = text.partition("#")[0]
    is_path = _looks_like_path(text)
    return (_DATA_FILE.sub("", _last_part(text)) if is_path else text), is_path


def _looks_like_path(text: str) -> bool:
    starts_as_path = re.match(r"\.{0,2}[/\\~]|[A-Za-z]:[/\\]|\w+://", text) is not None
    return starts_as_path or _DATA_FILE.search(text) is not None or text.count("/") + text.count("\\") > 1


def _last_part(text: str) -> str:
    """The name of a file or folder at the end of a path; an id ``owner/name`` stays."""
    if re.fullmatch(r"[\w.\-]+/[\w.\-]+", text) and not text.startswith("."):
        return text
    parts = [part for part in re.split(r"[/\\]+", text) if part not in ("", ".", "..", "~")]
    return parts[-1] if parts else ""


def _tool(sources: Sequence[_Source]) -> str | None:
    """The program that wrote the files; the Trainer's own only if no other is recognised."""
    names = {name.rpartition("/")[2] for name, _, _ in sources}
    keys = {key for _, flat, loaded in sources for key in (*flat, *map(str, loaded))}
    for tool in _tables()["tools"]:
        if not names.isdisjoint(tool.get("files", ())) or not keys.isdisjoint(tool.get("keys", ())):
            return str(tool["name"])
    return None
