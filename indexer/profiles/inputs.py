"""What texts look like to the block matrices of a base model: the inputs that they give to each matrix.

Training on a text changes a matrix by Σ g xᵀ over its inputs x, so δWᵀδW lies where the inputs do. The inputs of a set
of texts are summarised by their second moment M = Σ x xᵀ / n, one for each matrix. Moments of all texts share a few
large directions, so M is compared with that of reference texts, C: with W = (C + ρ)^-½, ρ being .01 of C's largest
eigenvalue, a set of texts is (W M W)^½ − (W C W)^½. Its sketch has the form of the vectors of models (representation
``input``): Σ σ v vᵀ = (δWᵀδW)^½, sketched with the same hashes, blocks of unit norm.

One forward pass of the base over the texts is all that is computed; no fine-tune is run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.architectures.architecture import load_architecture
from indexer.architectures.layout import Matrix
from indexer.errors import AtlasError
from indexer.machine import processors
from indexer.profiles.layers import fitting_tokens
from indexer.profiles.single import Reference, read_now
from indexer.profiles.subject import Subject
from indexer.profiles.tokenizer import IsolatedTokenizer, require_tokenizer
from indexer.records.row_plan import coordinates
from indexer.records.sketch import DRAW, tensor_sketch
from indexer.records.tokens import token_rows

__all__ = ["BaseModel", "Whitening", "read_base"]

RIDGE = 0.01  # of the largest eigenvalue of the reference's moment
TOKENS_EACH = 64  # of a text; the rest is left out, as more texts say more than longer ones
MOST_TOKENS = 6000  # of a set of texts; longer texts are cut shorter, so that none is left out
SHORTEST = 8  # tokens that a text is cut to
BATCH_TOKENS = 4096  # with padding
# Of a wider matrix some of the inputs are kept, evenly spaced over all tokens, instead of their moment: the moment of
# 3,072 numbers takes ten times as long as that of 768.
WIDEST, INPUTS_KEPT = 1024, 1024
# A base of this width runs on all processors. Smaller matrices, and eigenvectors, take longer on several threads.
WORTH_THREADS = 512
# Eigenvectors of the reference with eigenvalues below this share of the ridge are not kept: they are hardly whitened.
_NEGLIGIBLE = 0.02
_STARTS, _ENDS = ("[CLS]", "<s>"), ("[SEP]", "</s>")

Floats = NDArray[np.float32]
Progress = Callable[[int], None]  # called with the number of texts done


@dataclass(frozen=True)
class Whitening:
    """The reference's moments, by group of matrices with the same inputs.

    C is approximately Σ λ v vᵀ: ``values`` (k,) and ``vectors`` (d, k) by group, ``ridges`` ρ. ``roots``: the sketch
    (blocks, length) of (W C W)^½.
    """

    values: Mapping[str, Floats]
    vectors: Mapping[str, Floats]
    ridges: Mapping[str, float]
    roots: Floats


@dataclass
class _Inputs:
    """The inputs of one group: rows x/√n with Σ x xᵀ = M, or M itself."""

    width: int
    moment: torch.Tensor | None = None
    rows: list[torch.Tensor] = field(default_factory=list)


class BaseModel:
    """A base that texts are run through. ``keys``: the names of its matrices, in the order of a vector's blocks."""

    def __init__(self, subject: Subject, keys: Sequence[str], length: int) -> None:
        if subject.layers.takes_images:
            raise AtlasError(f"{subject.name} takes images, so it cannot be asked about texts.", "Name a text model.")
        self._subject, self._keys, self._length = subject, list(keys), length
        self._tokenizer = require_tokenizer(
            subject.tokenizer, subject.name, "Only bases with a tokenizer can be asked."
        )
        self._longest = fitting_tokens(subject.layers, TOKENS_EACH)
        self._vocabulary = len(subject.layers.tokens)
        self._start, self._end = _frame(self._tokenizer)
        shapes = {name: tuple(one.shape) for name, one in subject.model.state_dict().items()}
        layout = load_architecture(str(subject.config.get("model_type"))).locate(shapes, subject.config)
        self._matrices: dict[str, Matrix] = {str(one.key): one for one in layout.matrices}
        if lacking := [key for key in keys if key not in self._matrices]:
            raise AtlasError(
                f"{subject.name} as transformers runs it has no matrix {lacking[0]}, which its fine-tunes have.", ""
            )
        self._groups: dict[str, str] = {}  # of each matrix, by its name

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of texts, with a start and an end where the model has them, cut to what it takes."""
        found = []
        for text in texts:
            room = self._longest - len(self._start) - len(self._end)
            # A long text need not be encoded whole.
            ids = [one for one in self._tokenizer.encode(text[: 24 * room]) if 0 <= one < self._vocabulary][:room]
            found.append([*self._start, *ids, *self._end])
        return found

    def has_tokens(self, encoded: Sequence[Sequence[int]]) -> bool:
        """Whether some text has a token other than special ones, such as that for an unknown word."""
        special = set(self._tokenizer.special_ids)
        return any(one not in special for ids in encoded for one in ids)

    def rates(self, encoded: Sequence[Sequence[int]]) -> Floats:
        """(n,) how often each token occurs, as a share, of those whose rows are read (``indexer.records.tokens``)."""
        every = np.array([one for ids in encoded for one in ids], dtype=np.int64)
        counts = np.bincount(every, minlength=self._vocabulary)[token_rows(self._vocabulary)]
        return (counts / max(1, len(every))).astype(np.float32)

    def whitening(self, encoded: Sequence[Sequence[int]], progress: Progress = lambda done: None) -> Whitening:
        """The moments of the reference texts."""
        values, vectors, ridges = {}, {}, {}
        roots = np.zeros((len(self._keys), self._length), np.float32)
        for group, inputs in self._collected(encoded, progress).items():
            held, directions = _eigen(inputs)
            ridge = max(RIDGE * float(held.max(initial=0.0)), 1e-12)
            root = np.sqrt(held / (held + ridge))
            self._sketch(group, directions, root, roots)
            kept = held > _NEGLIGIBLE * ridge
            values[group], vectors[group] = held[kept].astype(np.float32), directions[:, kept].astype(np.float32)
            ridges[group] = ridge
        return Whitening(values, vectors, ridges, roots)

    def blocks(
        self,
        encoded: Sequence[Sequence[int]],
        whitening: Whitening,
        progress: Progress = lambda done: None,
        most: int | None = None,
    ) -> Floats:
        """(blocks, length) a set of texts as a vector: blocks of unit norm, or zero.

        ``most``: use at most this many inputs, evenly spaced over the tokens.
        """
        found = np.zeros((len(self._keys), self._length), np.float32)
        for group, inputs in self._collected(encoded, progress, most).items():
            if group not in whitening.vectors:
                continue
            vectors, ridge = torch.from_numpy(np.array(whitening.vectors[group])), whitening.ridges[group]
            scale = torch.from_numpy(1 / np.sqrt(whitening.values[group] + ridge) - ridge**-0.5).float()
            if inputs.moment is not None:
                inputs.moment = _whitened(
                    _whitened(inputs.moment.float(), vectors, scale, ridge).T, vectors, scale, ridge
                )
            inputs.rows = [_whitened(rows, vectors, scale, ridge) for rows in inputs.rows]
            held, directions = _eigen(inputs)
            self._sketch(group, directions, np.sqrt(held), found)
        found -= whitening.roots
        norms = np.linalg.norm(found, axis=1, keepdims=True)
        return np.divide(found, norms, out=np.zeros_like(found), where=norms > 1e-9)

    def _sketch(self, group: str, directions: NDArray[Any], root: NDArray[Any], target: Floats) -> None:
        """Add the sketch of Σ root v vᵀ to the blocks of the matrices of a group."""
        for place, key in enumerate(self._keys):
            if self._groups.get(key) != group:
                continue
            matrix = self._matrices[key]
            vectors = directions.astype(np.float64)
            if (held := coordinates(matrix.shape, matrix.transposed)) is not None:
                whole = np.zeros((matrix.shape[1], vectors.shape[1]))
                whole[held] = vectors
                vectors = whole
            target[place] += tensor_sketch(vectors, vectors, root.astype(np.float64), f"{DRAW}{key}", self._length)

    def _collected(
        self, encoded: Sequence[Sequence[int]], progress: Progress, most: int | None = None
    ) -> dict[str, _Inputs]:
        """The inputs of every group in one pass over the texts; what the padding gives is left out."""
        model, encoded = self._subject.model, self._cut(encoded)
        modules: dict[str, list[str]] = {}
        for key in self._keys:
            modules.setdefault(self._matrices[key].tensor.rpartition(".")[0], []).append(key)
        found: dict[str, _Inputs] = {}
        total = sum(map(len, encoded))
        kept = np.linspace(0, total - 1, min(total, most or INPUTS_KEPT)).astype(np.int64)
        before = 0  # tokens of earlier batches
        mask = torch.zeros(0)
        seen: deque[tuple[torch.Tensor, str]] = deque(maxlen=4)  # query, key and value are called with one tensor

        def collect(keys: list[str], module: torch.nn.Module, received: tuple[Any, ...]) -> None:
            states = received[0]
            matrix = self._matrices[keys[0]]
            held = coordinates(matrix.shape, matrix.transposed)
            same = next((group for one, group in seen if one is states), None) if held is None else None
            for key in keys:
                self._groups[key] = same or keys[0]
            if same is not None:
                return
            seen.append((states, keys[0]))
            rows = states[mask].float()
            if held is not None:
                rows = rows[:, torch.from_numpy(held).to(rows.device)]
            inputs = found.setdefault(keys[0], _Inputs(rows.shape[1]))
            if most is not None or inputs.width > WIDEST or total < inputs.width:
                some = torch.from_numpy(kept[(kept >= before) & (kept < before + len(rows))] - before)
                inputs.rows.append(rows[some.to(rows.device)].cpu() / len(kept) ** 0.5)
                return
            moment = (rows.T @ rows / total).cpu().double()
            inputs.moment = moment if inputs.moment is None else inputs.moment + moment

        hooks = []
        for name, keys in modules.items():

            def hook(module: torch.nn.Module, received: tuple[Any, ...], keys: list[str] = keys) -> None:
                collect(keys, module, received)

            hooks.append(model.get_submodule(name).register_forward_pre_hook(hook))
        done, threads = 0, torch.get_num_threads()
        if self._subject.layers.tokens.shape[1] >= WORTH_THREADS:
            torch.set_num_threads(max(threads, processors()))
        try:
            for ids, attended in self._batches(encoded):
                mask = attended.bool()
                with torch.inference_mode():
                    self._run(ids, attended)
                seen.clear()
                before += int(mask.sum())
                done += len(ids)
                progress(done)
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
            raise AtlasError(
                f"{self._subject.name} cannot be run on texts: {str(error).splitlines()[0][:160]}.", ""
            ) from error
        finally:
            torch.set_num_threads(threads)
            for one in hooks:
                one.remove()
        return found

    def _cut(self, encoded: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """The texts, cut to the largest length with which they have at most MOST_TOKENS together; with their ends."""
        lengths = np.array([len(one) for one in encoded])
        room = int(lengths.max(initial=0))
        while room > SHORTEST and np.minimum(lengths, room).sum() > MOST_TOKENS:
            room -= 1
        end = len(self._end)
        return [one if len(one) <= room else [*one[: room - end], *one[len(one) - end :]] for one in encoded]

    def _run(self, ids: torch.Tensor, attended: torch.Tensor) -> None:
        model = self._subject.model
        options: dict[str, Any] = {"input_ids": ids, "attention_mask": attended}
        if self._subject.stack:  # the decoder reads the text, too, one token behind
            start = getattr(model.config, "decoder_start_token_id", None) or 0
            options["decoder_input_ids"] = torch.cat([torch.full_like(ids[:, :1], start), ids[:, :-1]], dim=1)
            options["use_cache"] = False
        model(**options)

    def _batches(self, encoded: Sequence[Sequence[int]]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Ids and attention masks (texts, tokens) of texts of like length, short ones first."""
        padding = self._subject.config.get("pad_token_id")
        padding = padding if isinstance(padding, int) and 0 <= padding < self._vocabulary else 0
        device = self._subject.layers.device
        batch: list[Sequence[int]] = []
        ordered = sorted((ids for ids in encoded if ids), key=len)
        for place, ids in enumerate(ordered):
            batch.append(ids)
            following = len(ordered[place + 1]) if place + 1 < len(ordered) else 0
            if following and (len(batch) + 1) * following <= BATCH_TOKENS:
                continue
            width = len(ids)
            rows = torch.tensor([[*one, *[padding] * (width - len(one))] for one in batch])
            lengths = torch.tensor([len(one) for one in batch])
            yield rows.to(device), (torch.arange(width) < lengths[:, None]).long().to(device)
            batch = []


def read_base(name: str, commit: str | None, keys: Sequence[str], length: int, device: str = "cpu") -> BaseModel:
    """Read and load a base of an atlas. Raises AtlasError that says why it cannot be run on texts."""
    return BaseModel(read_now(Reference(name, commit), device), keys, length)


def _frame(tokenizer: IsolatedTokenizer) -> tuple[list[int], list[int]]:
    """The ids that a text begins and ends with, as the tokenizers of BERT, RoBERTa and T5 add them."""
    special = dict(zip(tokenizer.words(tokenizer.special_ids), tokenizer.special_ids, strict=True))
    start = [special[word] for word in _STARTS if word in special][:1]
    end = [special[word] for word in _ENDS if word in special][:1]
    return start, end


def _whitened(rows: torch.Tensor, vectors: torch.Tensor, scale: torch.Tensor, ridge: float) -> torch.Tensor:
    """Rows times W = ρ^-½ I + Σ ((λ + ρ)^-½ − ρ^-½) v vᵀ; ``scale`` holds the numbers in brackets."""
    return rows * ridge**-0.5 + ((rows @ vectors) * scale) @ vectors.T


def _eigen(inputs: _Inputs) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Eigenvalues (k,), none negative, and eigenvectors (d, k) of a moment; from the rows if there are only those."""
    if inputs.moment is not None:
        values, vectors = _eigh(inputs.moment)
        return values.clamp(min=0).numpy().astype(np.float64), vectors.numpy().astype(np.float64)
    rows = torch.cat(inputs.rows)
    if len(rows) >= rows.shape[1]:
        return _eigen(_Inputs(inputs.width, moment=rows.T @ rows))
    values, left = _eigh(rows @ rows.T)
    kept = values > 1e-6 * values[-1].clamp(min=1e-30)
    values, left = values[kept], left[:, kept]
    vectors = rows.T @ left / values.sqrt()
    return values.numpy().astype(np.float64), vectors.numpy().astype(np.float64)


def _eigh(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, vectors = torch.linalg.eigh(((matrix + matrix.T) / 2).float())
    return values, vectors
