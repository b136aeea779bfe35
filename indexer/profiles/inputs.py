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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
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
from indexer.records.sketch import DRAW, convolved, count_sketches
from indexer.records.tokens import token_rows

__all__ = ["BaseModel", "Whitening", "read_base"]

RIDGE = 0.01  # of the largest eigenvalue of the reference's moment
TOKENS_EACH = 64  # of a text; the rest is left out, as more texts say more than longer ones
MOST_TOKENS = 6000  # of a set of texts; longer texts are cut shorter, so that none is left out
SHORTEST = 8  # tokens that a text is cut to
BATCH_TOKENS = 1024  # with padding
MOST_BYTES = 256 << 20  # of inputs that are held
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
    """What a set of texts gives to one group of matrices: rows x/√n with Σ x xᵀ = M, or M itself."""

    moment: NDArray[np.float64] | None = None
    rows: list[Floats] = field(default_factory=list)


@dataclass(frozen=True)
class _Text:
    """A text of a pass: the number of its set, and which of its tokens are among those that are kept of the set."""

    ids: Sequence[int]
    place: int
    kept: NDArray[np.int64]


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

        def decompose(group: str, inputs: _Inputs) -> None:
            held, directions = _eigen(inputs)
            ridge = max(RIDGE * float(held.max(initial=0.0)), 1e-12)
            root = np.sqrt(held / (held + ridge))
            for key in self._keys_of(group):
                roots[self._keys.index(key)] = convolved(*self._sketches(key, directions), root)
            kept = held > _NEGLIGIBLE * ridge
            values[group], vectors[group] = held[kept].astype(np.float32), directions[:, kept].astype(np.float32)
            ridges[group] = ridge

        collected = self._collected([encoded], progress, None)
        _at_once(lambda group: decompose(group, collected[group][0]), list(collected))
        return Whitening(values, vectors, ridges, roots)

    def blocks(
        self,
        sets: Sequence[Sequence[Sequence[int]]],
        whitening: Whitening,
        progress: Progress = lambda done: None,
        most: int | None = None,
    ) -> Floats:
        """(sets, blocks, length) each set of encoded texts as a vector: blocks of unit norm, or zero.

        ``most``: use at most this many inputs of a set, evenly spaced over its tokens.
        """
        found = np.zeros((len(sets), len(self._keys), self._length), np.float32)
        white: dict[str, _White] = {}

        def compare(group: str, first: int, collected: Sequence[_Inputs]) -> None:
            if group not in white:
                white[group] = _White(
                    whitening.values[group], whitening.vectors[group], whitening.ridges[group],
                    {key: self._sketches(key, whitening.vectors[group]) for key in self._keys_of(group)},
                )  # fmt: skip
            for place, inputs in enumerate(collected, start=first):
                moment: NDArray[np.floating] | None = inputs.moment
                if moment is None and inputs.rows:
                    rows = np.concatenate(inputs.rows)
                    if len(rows) < rows.shape[1]:
                        self._from_rows(white[group], rows, group, found[place])
                        continue
                    moment = rows.T @ rows
                if moment is not None:
                    values, vectors = _eigh(white[group].around(moment))
                    for key in self._keys_of(group):
                        found[place, self._keys.index(key)] = convolved(*self._sketches(key, vectors), np.sqrt(values))

        for first, collected in self._passes(sets, progress, most):
            known = [group for group in collected if group in whitening.vectors]
            _at_once(partial(_of_group, compare, first, collected), known)
        found -= whitening.roots
        norms = np.linalg.norm(found, axis=2, keepdims=True)
        return np.divide(found, norms, out=np.zeros_like(found), where=norms > 1e-9)

    def _from_rows(self, white: _White, rows: Floats, group: str, target: Floats) -> None:
        """Sketch (W M W)^½ of M = Σ x xᵀ over rows x, without its eigenvectors.

        With B = W [x₁ x₂ …] and BᵀB = Q μ Qᵀ it is (B Q) μ^-½ (B Q)ᵀ, and CountSketches of B Q are those of B times Q.
        """
        projected, rest, gram = white.gram(rows)
        values, turns = _eigh(gram)
        kept = values > 1e-6 * max(float(values[-1]), 1e-30)
        turns, weights = turns[:, kept], 1 / np.sqrt(values[kept])
        for key in self._keys_of(group):
            both = zip(self._sketches(key, rest.T), white.sketches[key], strict=True)
            first, second = (
                (one * white.ridge**-0.5 + (of_vectors * white.scale) @ projected.T) @ turns for one, of_vectors in both
            )
            target[self._keys.index(key)] = convolved(first, second, weights)

    def _keys_of(self, group: str) -> list[str]:
        return [key for key in self._keys if self._groups.get(key) == group]

    def _sketches(self, key: str, columns: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The two CountSketches of vectors (d, n) of inputs of a matrix."""
        matrix = self._matrices[key]
        if (held := coordinates(matrix.shape, matrix.transposed)) is not None:
            whole = np.zeros((matrix.shape[1], columns.shape[1]), columns.dtype)
            whole[held] = columns
            columns = whole
        return count_sketches(columns, columns, f"{DRAW}{key}", self._length)

    def _passes(
        self, sets: Sequence[Sequence[Sequence[int]]], progress: Progress, most: int | None = None
    ) -> Iterator[tuple[int, dict[str, list[_Inputs]]]]:
        """The inputs of every group, for some sets of texts at a time, and the number of the first of them."""
        width = sum(self._matrices[key].shape[1] for key in self._keys)
        step = max(1, MOST_BYTES // (4 * width * (most or INPUTS_KEPT)))
        done = 0
        for start in range(0, len(sets), step):
            some = sets[start : start + step]
            yield start, self._collected(some, partial(_after, progress, done), most)
            done += sum(map(len, some))

    def _collected(
        self, sets: Sequence[Sequence[Sequence[int]]], progress: Progress, most: int | None
    ) -> dict[str, list[_Inputs]]:
        """The inputs of every group in one pass over all texts; what the padding gives is left out."""
        model = self._subject.model
        modules: dict[str, list[str]] = {}
        for key in self._keys:
            modules.setdefault(self._matrices[key].tensor.rpartition(".")[0], []).append(key)
        found: dict[str, list[_Inputs]] = {}
        texts, totals = self._texts(sets, most)
        mask, batch = torch.zeros(0), list[_Text]()
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
            inputs = found.setdefault(keys[0], [_Inputs() for _ in sets])
            width = states.shape[-1] if held is None else len(held)
            ends = np.cumsum([len(text.ids) for text in batch])
            for place in {text.place for text in batch}:
                # Moments only of one set at a time: that of the reference, or the one that is asked about.
                is_moment = most is None and width <= WIDEST and totals[place] >= width
                own = [
                    end - len(text.ids) + (np.arange(len(text.ids)) if is_moment else text.kept)
                    for text, end in zip(batch, ends, strict=True)
                    if text.place == place
                ]
                rows = states[mask]
                if len(sets) > 1 or not is_moment:
                    rows = rows[torch.from_numpy(np.concatenate(own)).to(rows.device)]
                if held is not None:
                    rows = rows[:, torch.from_numpy(held).to(rows.device)]
                values = rows.float().cpu().numpy()
                if not is_moment:
                    inputs[place].rows.append(values / np.float32(_kept(totals[place], most) ** 0.5))
                    continue
                moment = (values.T @ values).astype(np.float64) / totals[place]
                before = inputs[place].moment
                inputs[place].moment = moment if before is None else before + moment

        hooks = []
        for name, keys in modules.items():

            def hook(module: torch.nn.Module, received: tuple[Any, ...], keys: list[str] = keys) -> None:
                collect(keys, module, received)

            hooks.append(model.get_submodule(name).register_forward_pre_hook(hook))
        done, threads = 0, torch.get_num_threads()
        if self._subject.layers.tokens.shape[1] >= WORTH_THREADS:
            torch.set_num_threads(max(threads, processors()))
        try:
            for some, ids, attended in self._batches(texts):
                batch, mask = some, attended.bool()
                with torch.inference_mode():
                    self._run(ids, attended)
                seen.clear()
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

    def _texts(self, sets: Sequence[Sequence[Sequence[int]]], most: int | None) -> tuple[list[_Text], list[int]]:
        """The texts of all sets, short ones first, and the number of tokens of each set."""
        texts, totals = [], []
        for place, encoded in enumerate(sets):
            ordered = sorted((ids for ids in self._cut(encoded) if ids), key=len)
            total = sum(map(len, ordered))
            kept = np.linspace(0, max(total - 1, 0), _kept(total, most)).astype(np.int64)
            before = 0
            for ids in ordered:
                own = kept[(kept >= before) & (kept < before + len(ids))] - before
                texts.append(_Text(ids, place, own))
                before += len(ids)
            totals.append(total)
        return sorted(texts, key=lambda text: len(text.ids)), totals

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

    def _batches(self, texts: Sequence[_Text]) -> Iterator[tuple[list[_Text], torch.Tensor, torch.Tensor]]:
        """Texts of like length, with their ids and attention masks (texts, tokens)."""
        padding = self._subject.config.get("pad_token_id")
        padding = padding if isinstance(padding, int) and 0 <= padding < self._vocabulary else 0
        device = self._subject.layers.device
        batch: list[_Text] = []
        for place, text in enumerate(texts):
            batch.append(text)
            following = len(texts[place + 1].ids) if place + 1 < len(texts) else 0
            if following and (len(batch) + 1) * following <= BATCH_TOKENS:
                continue
            width = len(text.ids)
            rows = torch.tensor([[*one.ids, *[padding] * (width - len(one.ids))] for one in batch])
            lengths = torch.tensor([len(one.ids) for one in batch])
            yield batch, rows.to(device), (torch.arange(width) < lengths[:, None]).long().to(device)
            batch = []


class _White:
    """W = (C + ρ)^-½ of one group, with C ≈ Σ λ v vᵀ, and ``sketches`` of the v by matrix.

    Along v with λ > ρ a number would be the difference of two large ones, so these directions are split off first:
    W x = ρ^-½ x⊥ + Σ s vᵀx v, where x⊥ is x without them and s = (λ + ρ)^-½, less ρ^-½ for the other directions.
    """

    def __init__(
        self,
        values: Floats,
        vectors: Floats,
        ridge: float,
        sketches: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]],
    ) -> None:
        self.vectors, self.ridge = vectors, ridge
        self.is_large = values > ridge
        held = values.astype(np.float64) + ridge
        self.scale = (held**-0.5 - np.where(self.is_large, 0.0, ridge**-0.5)).astype(np.float32)
        self.squares = (1 / held - np.where(self.is_large, 0.0, 1 / ridge)).astype(np.float32)
        self.sketches = {key: tuple(one.astype(np.float32) for one in both) for key, both in sketches.items()}

    def gram(self, rows: Floats) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Of rows x (n, d): vᵀx (n, k), x⊥ (n, d), and the products (W x)·(W y) (n, n)."""
        projected = rows @ self.vectors
        rest = rows - projected[:, self.is_large] @ self.vectors[:, self.is_large].T
        return projected, rest, rest @ rest.T / np.float32(self.ridge) + (projected * self.squares) @ projected.T

    def around(self, moment: NDArray[np.floating]) -> Floats:
        """W M W."""
        large = self.vectors[:, self.is_large]
        white = (self.vectors * self.scale) @ self.vectors.T - np.float32(self.ridge**-0.5) * (large @ large.T)
        white[np.diag_indices_from(white)] += np.float32(self.ridge**-0.5)
        found: Floats = white @ moment.astype(np.float32) @ white
        return found


def _kept(total: int, most: int | None) -> int:
    """How many of the inputs of a set of texts with so many tokens are used."""
    return min(total, most or INPUTS_KEPT)


def _of_group(
    work: Callable[[str, int, list[_Inputs]], None], first: int, collected: Mapping[str, list[_Inputs]], group: str
) -> None:
    work(group, first, collected[group])


def _after(progress: Progress, before: int, done: int) -> None:
    progress(before + done)


def _at_once(work: Callable[[str], None], groups: Sequence[str]) -> None:
    """Do the work of each group, each with one thread: decompositions are no faster with several."""
    from threadpoolctl import threadpool_limits

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(processors()) as pool:
            list(pool.map(work, groups))
    finally:
        torch.set_num_threads(threads)


def read_base(name: str, commit: str | None, keys: Sequence[str], length: int, device: str = "cpu") -> BaseModel:
    """Read and load a base of an atlas. Raises AtlasError that says why it cannot be run on texts."""
    return BaseModel(read_now(Reference(name, commit), device), keys, length)


def _frame(tokenizer: IsolatedTokenizer) -> tuple[list[int], list[int]]:
    """The ids that a text begins and ends with, as the tokenizers of BERT, RoBERTa and T5 add them."""
    special = dict(zip(tokenizer.words(tokenizer.special_ids), tokenizer.special_ids, strict=True))
    start = [special[word] for word in _STARTS if word in special][:1]
    end = [special[word] for word in _ENDS if word in special][:1]
    return start, end


def _eigen(inputs: _Inputs) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Eigenvalues (k,), none negative, and eigenvectors (d, k) of a moment; from the rows if there are only those."""
    if inputs.moment is not None:
        return _eigh(inputs.moment)
    rows = np.concatenate(inputs.rows)
    if len(rows) >= rows.shape[1]:
        return _eigh(rows.T @ rows)
    values, left = _eigh(rows @ rows.T)
    kept = values > 1e-6 * max(float(values[-1]), 1e-30)
    values, left = values[kept], left[:, kept]
    return values, rows.T @ left / np.sqrt(values).astype(np.float32)


def _eigh(matrix: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Eigenvalues, ascending, none negative, and eigenvectors of a symmetric matrix, in single precision."""
    whole = torch.from_numpy(matrix.astype(np.float32))
    values, vectors = torch.linalg.eigh((whole + whole.T) / 2)  # in a third less time than NumPy
    return values.clamp(min=0).double().numpy(), vectors.numpy()
