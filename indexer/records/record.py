"""Records: what is stored about one model at one commit, and the file format.

Factors are float16, singular values and norms float32; the header holds everything else as JSON, with a checksum over
all of it (``indexer.storage.arrays``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from indexer.errors import AtlasError, system_errors
from indexer.names import UNMEASURABLE, UNTRAINED, DeltaKey
from indexer.records.adapter_start import AdapterStart
from indexer.records.identity import AdapterBase, Identity, canonical_json
from indexer.records.signs import COLUMNS, Signs
from indexer.sources.cards.modelcard import DatasetClaim, claims_in_training
from indexer.storage.arrays import checksum, read_arrays, read_texts, write_arrays
from indexer.untrusted import load_json, malformed, printable
from indexer.vectors.centre import ADAPTER, BY_OUTPUT, FULL

# ``Record.adapter_kind`` of an adapter that replaces whole matrices.
# A note on an adapter whose strength its file leaves open: it is read as if alpha were its rank.
NO_ALPHA = "its file does not say its alpha, so the norm of its change is not known"
WHOLE_MATRICES = "whole matrices"

# Kinds of adapters (``Record.adapter_kind``) that begin with ones or an identity, without random numbers.
NOT_RANDOM = ("IA3", "OFT", "BOFT")

# Float32 rounds at this share of a number, and may lose a smaller change.
_ROUNDING = 2.0**-24

# The factors of a model of 70 billion numbers take half of it.
LARGEST = 2 << 30

RANK_THRESHOLDS = (50, 80, 90, 95, 99)  # per cent of the energy; the columns rank_50 … of the deltas table


@dataclass(frozen=True)
class StoredFile:
    """A weight file. ``sha256`` is its LFS id, if known without hashing it."""

    name: str
    size: int
    sha256: str | None
    format: str


@dataclass(frozen=True)
class DeltaRecord:
    """One delta: δW ≈ u · diag(s) · vᵀ with its norms.

    ``u`` (out, r) and ``v`` (in, r) are float16, or None if factors are not kept; ``s`` (r,) is float32, descending.
    ``norm`` is ‖δW‖ and ``base_norm`` ‖W_base‖ (Frobenius); ``inner`` is ⟨W_base, δW⟩, which gives the cosine of the
    weights with the base. With spectra, ``spectrum`` holds all min(out, in) singular values of δW (None for a zero
    delta) and ``weights`` those of W. ``transposed``: the checkpoint stores (in, out).

    ``lines``: how many rows were read (``indexer.records.row_plan``), None for all. A sample has no ``u``; its ``s``,
    ``norm`` and ``inner`` are estimates, ``norm_error`` is the standard error of ``norm``, and ``v`` consists of the
    right singular vectors of these rows (of a ``transposed`` matrix, of these input coordinates; zero elsewhere).
    ``u_rows`` (n, r) float16 takes the place of the rows of u that were read (of a ``transposed`` matrix, of all), so
    that u_rows · diag(s) · vᵀ is δW on what was read, up to rank r.

    ``learned_s`` (k,) and ``learned_v`` (in, k) float16, only of a LoRA whose start is known: the singular values and
    right singular vectors of A − A₀, what training did to the factor A.
    """

    key: DeltaKey
    shape: tuple[int, int]
    norm: float
    base_norm: float
    inner: float
    s: NDArray[np.float32]
    u: NDArray[np.float16] | None = None
    v: NDArray[np.float16] | None = None
    spectrum: NDArray[np.float32] | None = None
    transposed: bool = False
    weights: NDArray[np.float32] | None = None
    lines: int | None = None
    norm_error: float = 0.0
    u_rows: NDArray[np.float16] | None = None
    learned_s: NDArray[np.float32] | None = None
    learned_v: NDArray[np.float16] | None = None

    @property
    def name(self) -> str:
        """``3.query``, or ``decoder.3.query`` where there are two stacks."""
        return str(self.key)

    @property
    def relative_norm(self) -> float:
        """‖δW‖ / ‖W_base‖; 0 if the base matrix is zero."""
        return self.norm / self.base_norm if self.base_norm else 0.0

    @property
    def energy(self) -> float:
        """The share of ‖δW‖² that the kept singular values hold, 0 for a zero delta.

        For a sample it is their share of the rows that were read, which is larger.
        """
        if not self.norm:
            return 0.0
        return min(1.0, float(np.square(self.s, dtype=np.float64).sum() / self.norm**2))

    def change_ranks(self, thresholds: Sequence[float]) -> list[int | None]:
        """How many singular values of δW hold each of these shares of its energy; 0 for a zero delta.

        Computed from all of them if they are kept, else from the largest and the norm; None if those do not suffice,
        and for a sample.
        """
        if self.lines is not None and self.norm:
            return [None] * len(thresholds)
        if self.spectrum is not None:
            return ranks_at(self.spectrum, thresholds)
        return ranks_at(self.s, thresholds, self.norm)

    def weight_ranks(self, thresholds: Sequence[float]) -> list[int | None]:
        """How many singular values of W hold each of these shares of its energy; None if they are not kept."""
        return [None] * len(thresholds) if self.weights is None else ranks_at(self.weights, thresholds)


@dataclass(frozen=True)
class FusedMatrixRecord:
    """A matrix that the base stores fused (GPT-2's c_attn), as a whole: its ``parts`` one below the other.

    ``shape`` is (out, in) of the whole; ``spectrum`` and ``weights`` as in ``DeltaRecord``.
    """

    parts: tuple[DeltaKey, ...]
    shape: tuple[int, int]
    spectrum: NDArray[np.float32] | None
    weights: NDArray[np.float32]

    @property
    def family(self) -> str:
        """``query_key_value``."""
        return "_".join(part.family for part in self.parts)

    @property
    def name(self) -> str:
        """``3.query_key_value``, or ``decoder.3.query_key_value`` where there are two stacks."""
        return f"{self.parts[0]}".removesuffix(self.parts[0].family) + self.family

    def change_ranks(self, thresholds: Sequence[float]) -> list[int | None]:
        """See ``DeltaRecord.change_ranks``."""
        return [0] * len(thresholds) if self.spectrum is None else ranks_at(self.spectrum, thresholds)

    def weight_ranks(self, thresholds: Sequence[float]) -> list[int | None]:
        """See ``DeltaRecord.weight_ranks``."""
        return ranks_at(self.weights, thresholds)


@dataclass(frozen=True)
class TokenChanges:
    """What training did to some rows of the input embedding (``indexer.records.tokens``).

    ``codes``, ``scale``, ``kind``, ``is_share``: see ``RowChanges``. ``vocabulary``: the number of rows of the model's
    embedding, ``base_vocabulary`` that of the base's, which decides the rows. ``positions``: the number of rows of its
    position embeddings up to the last that moved; None if it is not known. ``pairs``: whether the second token type
    occurred; None if the model has none, or it is not known.
    """

    codes: NDArray[np.uint8]
    scale: float
    vocabulary: int
    base_vocabulary: int
    kind: str
    is_share: bool
    positions: int | None = None
    pairs: bool | None = None


@dataclass(frozen=True)
class Record:
    """Everything kept of one model at one commit; ``vectors`` maps a representation's tag to its vector.

    ``fused_matrices`` come with the spectra, for matrices that the base stores fused. ``sample`` holds some weights of
    every block matrix (``indexer.records.weight_sample``); ``moved`` of them differ from the base's. ``precision`` is
    the narrowest dtype that holds all weights that were read. These are None, 0 and "" for adapters. ``adapter_base``
    is present for adapters that name their base. ``row_space`` (K, 1 + m) is a sketch of the row space of the LoRA
    factors A (``indexer.records.row_space``); None for other models. ``tokens``: None for adapters, and where the input
    embedding cannot be compared with the base's. ``adapter_kind``: the method of an adapter
    (``indexer.checkpoints.adapter.AdapterPlan``), "" for other models; ``passed_over``: what was not read of it;
    ``adapter_notes``: sentences on settings that its files leave open. ``base_grid``: the 4-bit form to which the base
    had been rounded before training ("nf4" or "nf4 double"), "" if it had not been. ``training``: what the files beside
    the weights say of how they were made (``indexer.sources.cards.training_files.Training.to_dict``); {} if nothing.
    ``signs``: what else the weights show of how they were changed; None for adapters.
    """

    identity: Identity
    deltas: tuple[DeltaRecord, ...]
    files: tuple[StoredFile, ...] = ()
    head: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = ""
    device: str = "cpu"
    threads: int = 1
    bytes_read: int = 0
    block_bytes: int = 0
    seconds: float = 0.0
    created: str = ""
    card: Mapping[str, Any] = field(default_factory=dict)
    vectors: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    fused_matrices: tuple[FusedMatrixRecord, ...] = ()
    sample: NDArray[np.float32] | None = None
    moved: int = 0
    precision: str = ""
    adapter_base: AdapterBase | None = None
    row_space: NDArray[np.float16] | None = None
    tokens: TokenChanges | None = None
    adapter_kind: str = ""
    passed_over: tuple[str, ...] = ()
    adapter_notes: tuple[str, ...] = ()
    base_grid: str = ""
    start: AdapterStart | None = None
    signs: Signs | None = None
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dataset_claims(self) -> tuple[DatasetClaim, ...]:
        """The datasets that the files beside the weights name."""
        return claims_in_training(self.training)

    @property
    def norm(self) -> float:
        """Frobenius norm of all its deltas together."""
        return float(np.sqrt(sum(delta.norm**2 for delta in self.deltas)))

    @property
    def has_norm(self) -> bool:
        """Whether ``norm`` is known: else all deltas are known up to one factor."""
        return NO_ALPHA not in self.adapter_notes

    @property
    def norm_error(self) -> float:
        """The standard error of ``norm``; 0 where every matrix was read whole."""
        errors = sum((delta.norm * delta.norm_error) ** 2 for delta in self.deltas)
        return float(np.sqrt(errors) / self.norm) if errors else 0.0

    @property
    def is_sampled(self) -> bool:
        """Whether some matrix was read in part."""
        return any(delta.lines is not None for delta in self.deltas)

    @property
    def read(self) -> str:
        """``sample`` or ``full``."""
        return "sample" if self.is_sampled else "full"

    @property
    def is_adapter(self) -> bool:
        """Whether the weights came as an adapter's."""
        return any(stored.format.startswith("adapter") for stored in self.files)

    @property
    def vector_group(self) -> str:
        """What its vector is made of: the change of weights, what an adapter learned, or an adapter's whole change.

        A LoRA merged into full weights and a partly frozen model are full fine-tunes, and so are an adapter of a full
        fine-tune and one that replaces whole matrices. The change of an adapter that did not begin with random numbers
        is what it learned.
        """
        is_of_fine_tune = self.adapter_base is not None and self.adapter_base.verdict == "finetune"
        if not self.is_adapter or is_of_fine_tune or self.adapter_kind == WHOLE_MATRICES:
            return FULL
        is_known = self.start is not None and (self.start.has_learned or self.start.seed is None)
        return ADAPTER if is_known or self.adapter_kind in NOT_RANDOM else BY_OUTPUT

    @property
    def base_cosine(self) -> float | None:
        """Cosine of the weights with the base's over all block matrices; None for an adapter.

        With W = W_base + δW: ⟨W, W_base⟩ = ‖W_base‖² + ⟨W_base, δW⟩.
        """
        if self.is_adapter:
            return None
        base_square = sum(delta.base_norm**2 for delta in self.deltas)
        inner = sum(delta.inner for delta in self.deltas)
        delta_square = sum(delta.norm**2 for delta in self.deltas)
        weight_square = max(base_square + 2 * inner + delta_square, 0.0)
        if not base_square or not weight_square:
            return 0.0
        return float(np.clip((base_square + inner) / np.sqrt(base_square * weight_square), -1.0, 1.0))

    @property
    def is_copy(self) -> bool:
        """Whether every delta is zero, after rounding, in all that was read.

        That of an adapter, which is not rounded to the base's dtype, also if float32 may lose it.
        """
        least = _ROUNDING if self.is_adapter else 0.0
        return all(delta.norm <= least * delta.base_norm for delta in self.deltas)

    def copy_evidence(self, base_hashes: Collection[str | None] = ()) -> str | None:
        """What shows that nothing changed: the column ``copy_evidence``; None if something did.

        ``base_hashes``: the checksums of the base's weight files.
        """
        if not self.is_copy:
            return None
        if self.is_adapter:
            return UNMEASURABLE if any(delta.norm for delta in self.deltas) else UNTRAINED
        hashes = sorted(stored.sha256 or "" for stored in self.files)
        if hashes and all(hashes) and hashes == sorted(name or "" for name in base_hashes):
            return "checksum"
        return "sample" if self.is_sampled else "weights"

    @property
    def has_spectra(self) -> bool:
        """Whether all singular values are here, of every δW and of every W."""
        return not self.is_sampled and all(
            delta.weights is not None and (delta.spectrum is not None or delta.norm == 0.0) for delta in self.deltas
        )


def write_record(record: Record, path: Path) -> None:
    """Write atomically: a reader sees the whole record or none of it."""
    arrays: dict[str, NDArray[Any]] = {f"vector:{tag}": vector for tag, vector in record.vectors.items()}
    arrays |= {name: array for name in _ARRAYS if (array := getattr(record, name)) is not None}
    if record.tokens is not None:
        arrays["tokens"] = record.tokens.codes
    if record.signs is not None:
        arrays["signs"] = record.signs.matrices
    matrices: tuple[DeltaRecord | FusedMatrixRecord, ...] = (*record.deltas, *record.fused_matrices)
    for matrix in matrices:
        for name in ("s", *_OPTIONAL_ARRAYS):
            if (array := getattr(matrix, name, None)) is not None:
                arrays[f"{matrix.name}.{name}"] = array
    header = {
        "identity": record.identity.as_row(),
        "deltas": [
            {"key": delta.name, "shape": list(delta.shape)}
            | {name: getattr(delta, name) for name in _DELTA_FIELDS}
            | ({} if delta.lines is None else {"lines": delta.lines, "norm_error": delta.norm_error})
            for delta in record.deltas
        ],
        "fused_matrices": [
            {"name": fused.name, "parts": [str(part) for part in fused.parts], "shape": list(fused.shape)}
            for fused in record.fused_matrices
        ],
        "files": [asdict(stored) for stored in record.files],
        "moved": record.moved,
        "adapter_base": asdict(record.adapter_base) if record.adapter_base else None,
        "precision": record.precision,
        "base_grid": record.base_grid,
        "start": asdict(record.start) if record.start else None,
        "signs": record.signs and record.signs.as_row(),
        "adapter": {
            "kind": record.adapter_kind,
            "passed_over": list(record.passed_over),
            "notes": list(record.adapter_notes),
        },
        "tokens": record.tokens and {name: getattr(record.tokens, name) for name in _TOKEN_FIELDS},
    } | {name: getattr(record, name) for name in _FIELDS}
    text = canonical_json(header)
    write_arrays(path, arrays, {"record": text, "checksum": checksum(text, arrays)})


def read_record(path: Path) -> Record:
    """Read and check one record.

    Raises AtlasError if the file is missing, truncated or altered, and OtherVersion.
    """
    hint = "Run `index rebuild`, which deletes it, and then `index build`, which reads the model again."

    def unreadable(why: str) -> AtlasError:
        return AtlasError(f"The record {path.name} cannot be read ({why}).", hint)

    with system_errors(unreadable), malformed(unreadable):
        arrays, texts = read_arrays(path, LARGEST)
        if texts["checksum"] != checksum(texts["record"], arrays):
            raise AtlasError(f"The record {path.name} was altered: its checksum does not match.", hint)
        header = load_json(texts["record"])
        identity = Identity.from_row(header["identity"], f"The record {path.name}")
        deltas = tuple(
            DeltaRecord(
                key=DeltaKey.parse(row["key"]),
                shape=(row["shape"][0], row["shape"][1]),
                s=arrays[f"{row['key']}.s"],
                lines=row.get("lines"),
                norm_error=row.get("norm_error", 0.0),
                **{name: row[name] for name in _DELTA_FIELDS},
                **dict[str, Any]({name: arrays.get(f"{row['key']}.{name}") for name in _OPTIONAL_ARRAYS}),
            )
            for row in header["deltas"]
        )
        fused_matrices = tuple(
            FusedMatrixRecord(
                parts=tuple(DeltaKey.parse(part) for part in row["parts"]),
                shape=(row["shape"][0], row["shape"][1]),
                spectrum=arrays.get(f"{row['name']}.spectrum"),
                weights=arrays[f"{row['name']}.weights"],
            )
            for row in header["fused_matrices"]
        )
        return Record(
            identity=identity,
            deltas=deltas,
            fused_matrices=fused_matrices,
            files=tuple(StoredFile(**row) for row in header["files"]),
            adapter_base=AdapterBase(**header["adapter_base"]) if header["adapter_base"] else None,
            moved=int(header["moved"]),
            precision=str(header["precision"]),
            base_grid=str(header["base_grid"]),
            start=AdapterStart(**header["start"]) if header["start"] else None,
            signs=_signs_from(arrays["signs"], header["signs"], len(deltas)) if header.get("signs") else None,
            tokens=TokenChanges(arrays["tokens"], **header["tokens"]) if header["tokens"] else None,
            adapter_kind=str(header["adapter"]["kind"]),
            passed_over=tuple(map(str, header["adapter"]["passed_over"])),
            adapter_notes=tuple(map(str, header["adapter"]["notes"])),
            vectors={name[7:]: array for name, array in arrays.items() if name.startswith("vector:")},
            sample=arrays.get("sample"),
            row_space=arrays.get("row_space"),
            **{name: header[name] for name in _FIELDS},
        )


def _signs_from(matrices: NDArray[Any], row: Mapping[str, Any], count: int) -> Signs:
    """Signs as they are stored. Raises ValueError if they are not those of ``count`` matrices."""
    if matrices.shape != (count, len(COLUMNS)) or not np.isfinite(matrices).all():
        raise ValueError(f"its signs have the shape {matrices.shape}, not {(count, len(COLUMNS))}, or are not finite")
    signs = Signs(matrices, **row)
    is_count = signs.reset_tokens is None or type(signs.reset_tokens) is int
    is_text = isinstance(signs.rearranged, str) and signs.rearranged == printable(signs.rearranged, 200)
    if not (is_count and is_text and 0 <= signs.rearranged_effect <= 1):
        raise ValueError("its signs have values of the wrong kind")
    return signs


def read_identity(path: Path) -> tuple[Identity, str]:
    """The identity of a record and when it was made (ISO 8601), from its header; nothing is checked.

    Raises OSError, OtherVersion or one of WRONG_KINDS where that cannot be read.
    """
    header = load_json(read_texts(path)["record"])
    return Identity.from_row(header["identity"]), str(header["created"])


# Fields of the header, and arrays, that are stored unchanged, of a record and of a matrix.
_FIELDS = ("head", "card", "training", "dtype", "device", "threads", "bytes_read", "block_bytes", "seconds", "created")
_ARRAYS = ("sample", "row_space")
_TOKEN_FIELDS = ("scale", "vocabulary", "base_vocabulary", "kind", "is_share", "positions", "pairs")
_DELTA_FIELDS = ("norm", "base_norm", "inner", "transposed")
_OPTIONAL_ARRAYS = ("u", "u_rows", "v", "spectrum", "weights", "learned_s", "learned_v")


def ranks_at(values: ArrayLike, thresholds: Sequence[float], norm: float | None = None) -> list[int | None]:
    """For each share of the energy the smallest r for which the first r ``values`` hold it.

    ``values`` are singular values in descending order. ``norm`` is the Frobenius norm of the matrix, given if
    ``values`` are not all of them. 0 for a zero matrix; None if ``values`` do not hold that share. Raises ValueError
    if a threshold is not in (0, 1].
    """
    for threshold in thresholds:
        if not 0 < threshold <= 1:
            raise ValueError(f"a share of energy lies in (0, 1], not {threshold}")
    numbers = np.asarray(values, dtype=np.float64)
    largest = float(numbers[0]) if len(numbers) else 0.0
    if largest == 0:
        return [0 if not norm else None for _ in thresholds]
    energy = np.square(numbers / largest).cumsum()
    total = float(energy[-1]) if norm is None else (norm / largest) ** 2
    before = energy.searchsorted([threshold * total for threshold in thresholds], side="left").tolist()
    return [rank + 1 if rank < len(numbers) else None for rank in before]
