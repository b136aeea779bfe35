"""The inputs that texts give to each block matrix of a base model.

Training on a text changes a matrix by Σ g xᵀ over its inputs x, so δWᵀδW lies where the inputs do. The inputs of a set
of texts are summarised by their second moment M = Σ x xᵀ / n, one for each matrix. Moments of all texts share a few
large directions, so M is compared with that of reference texts, C: with W = (C + ρ)^-½, ρ being .01 of C's largest
eigenvalue, a set of texts is (W M W)^½ − (W C W)^½. Its sketch has the form of the vectors of models (representation
``input``): Σ σ v vᵀ = (δWᵀδW)^½, sketched with the same hashes, blocks of unit norm.

Only one forward pass of the base over the texts is computed; no fine-tune is run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.checkpoints.architectures.architecture import load_architecture
from indexer.checkpoints.architectures.layout import Matrix
from indexer.errors import AtlasError
from indexer.machine import processors
from indexer.profiles.layers import fitting_tokens
from indexer.profiles.single import read_now
from indexer.profiles.subject import Subject
from indexer.profiles.tokenizer import require_tokenizer
from indexer.profiles.whitening import Floats, ReferenceMoments, Whitener, eigenvectors, moment_eigenvectors
from indexer.records.identity import ModelVersion
from indexer.records.row_plan import coordinates
from indexer.records.sketch import DRAW, convolved, count_sketches
from indexer.records.tokens import token_rows
from indexer.shared_state import one_blas_thread
from indexer.vectors.centre import unit_norm

__all__ = ["BaseModel", "ReferenceMoments", "read_base"]

RIDGE = 0.01  # of the largest eigenvalue of the reference's moment
TOKENS_EACH = 64  # of a text that are used: more texts are more informative than longer texts
BATCH_TOKENS = 1024  # with padding
WIDEST = 1024  # matrices with more inputs get the inputs of fewer tokens
# A base of this width runs on all processors. Smaller matrices, and eigenvectors, take longer on several threads.
WORTH_THREADS = 512
# Eigenvectors of the reference with eigenvalues below this share of the ridge are dropped: whitening hardly changes
# them.
_NEGLIGIBLE = 0.02
# A block of a smaller norm is only rounding.
_NOTHING = 1e-9
_STARTS, _ENDS = ("[CLS]", "<s>"), ("[SEP]", "</s>")

Progress = Callable[[int], None]  # called with the number of texts that were done since the last call


@dataclass(frozen=True)
class Budget:
    """How much of a set of texts is used.

    ``texts``: the most texts, evenly spaced; ``tokens``: the first tokens of each. ``wide``: how many tokens, evenly
    spaced, are used for a matrix of more than ``WIDEST`` inputs.
    """

    texts: int
    tokens: int
    wide: int


# Inputs depend on their positions, so texts that are compared are cut to the same length.
ASKED, OF_A_SET = Budget(100, 16, 256), Budget(4, 16, 16)


@dataclass(frozen=True)
class _Text:
    """A text of a pass.

    ``wide``: its tokens that are used for wide matrices; ``start``, ``wide_start``: its first row among the rows of all
    texts, for narrow and for wide matrices.
    """

    ids: Sequence[int]
    wide: NDArray[np.int64]
    start: int
    wide_start: int


class BaseModel:
    """A base that is run on texts. ``keys``: the names of its matrices, in the order of a vector's blocks."""

    def __init__(self, subject: Subject, keys: Sequence[str], length: int) -> None:
        if subject.layers.takes_images:
            raise AtlasError(f"{subject.name} takes images, so it cannot be asked about texts.", "Name a text model.")
        self._subject, self._keys, self._length = subject, list(keys), length
        self._tokenizer = require_tokenizer(subject.tokenizer, subject.name, "Only bases with a tokenizer can be used.")
        self._longest = fitting_tokens(subject.layers, TOKENS_EACH)
        self._vocabulary = len(subject.layers.tokens)
        # The first and the last id of a text, as the tokenizers of BERT, RoBERTa and T5 add them.
        ids = self._tokenizer.special_ids
        special = dict(zip(self._tokenizer.words(ids), ids, strict=True))
        self._start = [special[word] for word in _STARTS if word in special][:1]
        self._end = [special[word] for word in _ENDS if word in special][:1]
        shapes = {name: tuple(tensor.shape) for name, tensor in subject.model.state_dict().items()}
        layout = load_architecture(str(subject.config.get("model_type"))).locate(shapes, subject.config)
        self._matrices: dict[str, Matrix] = {str(matrix.key): matrix for matrix in layout.matrices}
        if missing := [key for key in keys if key not in self._matrices]:
            raise AtlasError(
                f"{subject.name} as transformers runs it has no matrix {missing[0]}, which its fine-tunes have.", ""
            )
        self._groups: dict[str, str] = {}  # of each matrix, by its name

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of texts, with the model's start and end tokens if it has them, cut to its longest input."""
        encoded = []
        for text in texts:
            room = self._longest - len(self._start) - len(self._end)
            # A long text need not be encoded whole.
            ids = [token for token in self._tokenizer.encode(text[: 24 * room]) if 0 <= token < self._vocabulary][:room]
            encoded.append([*self._start, *ids, *self._end])
        return encoded

    def has_tokens(self, encoded: Sequence[Sequence[int]]) -> bool:
        """Whether any text has a token that is not special (a token for unknown words is special)."""
        special = set(self._tokenizer.special_ids)
        return any(token not in special for ids in encoded for token in ids)

    def rates(self, encoded: Sequence[Sequence[int]]) -> Floats:
        """(n,) the relative frequency of each token whose row is read (``indexer.records.tokens``)."""
        tokens = np.array([token for ids in encoded for token in ids], dtype=np.int64)
        counts = np.bincount(tokens, minlength=self._vocabulary)[token_rows(self._vocabulary)]
        return (counts / max(1, len(tokens))).astype(np.float32)

    def reference(
        self,
        sets: Sequence[Sequence[Sequence[int]]],
        own: int,
        progress: Progress = lambda count: None,
        budget: Budget = OF_A_SET,
    ) -> tuple[ReferenceMoments, Floats]:
        """The moments of the first ``own`` of ``sets`` of encoded texts, and the ``blocks`` of all sets."""
        values, vectors, ridges = dict[str, Floats](), dict[str, Floats](), dict[str, float]()
        roots = np.zeros((len(self._keys), self._length), np.float32)
        blocks = np.zeros((len(sets), len(self._keys), self._length), np.float32)

        def decompose(group: str) -> None:
            inputs = collected.pop(group)
            eigenvalues, directions = moment_eigenvectors(np.concatenate(inputs[:own]))
            ridge = max(RIDGE * float(eigenvalues.max(initial=0.0)), 1e-12)
            root = np.sqrt(eigenvalues / (eigenvalues + ridge))
            for key in self._keys_of(group):
                roots[self._keys.index(key)] = convolved(*self._sketches(key, directions), root)
            is_kept = eigenvalues > _NEGLIGIBLE * ridge
            values[group], vectors[group] = (
                eigenvalues[is_kept].astype(np.float32),
                directions[:, is_kept].astype(np.float32),
            )
            ridges[group] = ridge
            self._compare(group, inputs, Whitener(values[group], vectors[group], ridge), blocks)

        collected = self._collected(sets, progress, budget)
        _in_parallel(decompose, list(collected))
        return ReferenceMoments(values, vectors, ridges, roots), unit_norm(blocks - roots, _NOTHING)

    def blocks(
        self,
        sets: Sequence[Sequence[Sequence[int]]],
        whitening: ReferenceMoments,
        progress: Progress = lambda count: None,
        budget: Budget = ASKED,
    ) -> Floats:
        """(sets, blocks, length) each set of encoded texts as a vector: blocks of unit norm, or zero."""
        blocks = np.zeros((len(sets), len(self._keys), self._length), np.float32)

        def compare(group: str) -> None:
            white = Whitener(whitening.values[group], whitening.vectors[group], whitening.ridges[group])
            self._compare(group, collected.pop(group), white, blocks)

        collected = self._collected(sets, progress, budget)
        _in_parallel(compare, [group for group in collected if group in whitening.vectors])
        return unit_norm(blocks - whitening.roots, _NOTHING)

    def _compare(self, group: str, inputs: Sequence[Floats], white: Whitener, blocks: Floats) -> None:
        """Sketch (W M W)^½ of the inputs x of every set, for all matrices of a group, into ``blocks``.

        With B = W [x₁ x₂ …] / √n and BᵀB = Q μ Qᵀ it is (B Q) μ^-½ (B Q)ᵀ, and CountSketches of B Q are those of B
        times Q. If a set has more inputs than the matrix, the eigenvectors of W M W take less time.
        """
        keys = {self._keys.index(key): key for key in self._keys_of(group)}
        ends = np.cumsum([len(rows) for rows in inputs])
        narrow_sets = [number for number, rows in enumerate(inputs) if 0 < len(rows) < rows.shape[1]]
        if narrow_sets:
            rows = np.concatenate(inputs)
            projected, orthogonal = white.parts(rows)
            scaled = projected * white.scale
            sketches = {}
            for index, key in keys.items():
                of_vectors, of_orthogonal = self._sketches(key, white.vectors), self._sketches(key, orthogonal.T)
                sketches[index] = [
                    sketch * white.ridge**-0.5 + projection @ scaled.T
                    for sketch, projection in zip(of_orthogonal, of_vectors, strict=True)
                ]
        for number, rows in enumerate(inputs):
            count = max(1, len(rows))
            if number in narrow_sets:
                own_rows = slice(ends[number] - len(rows), ends[number])
                gram = orthogonal[own_rows] @ orthogonal[own_rows].T / np.float32(white.ridge)
                gram += (projected[own_rows] * white.squares) @ projected[own_rows].T
                values, rotations = eigenvectors(gram / count)
                is_kept = values > 1e-6 * max(float(values[-1]), 1e-30)
                rotations, weights = rotations[:, is_kept], 1 / np.sqrt(values[is_kept]) / count
                for index in keys:
                    first, second = (sketch[:, own_rows] @ rotations for sketch in sketches[index])
                    blocks[number, index] = convolved(first, second, weights)
            elif len(rows):
                values, vectors = eigenvectors(white.whitened(rows.T @ rows / count))
                for index, key in keys.items():
                    blocks[number, index] = convolved(*self._sketches(key, vectors), np.sqrt(values))

    def _keys_of(self, group: str) -> list[str]:
        return [key for key in self._keys if self._groups.get(key) == group]

    def _sketches(self, key: str, columns: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The two CountSketches of vectors (d, n) of inputs of a matrix."""
        matrix = self._matrices[key]
        if (positions := coordinates(matrix.shape, matrix.transposed)) is not None:
            full = np.zeros((matrix.shape[1], columns.shape[1]), columns.dtype)
            full[positions] = columns
            columns = full
        return count_sketches(columns, columns, f"{DRAW}{key}", self._length)

    def _collected(
        self, sets: Sequence[Sequence[Sequence[int]]], progress: Progress, budget: Budget
    ) -> dict[str, list[Floats]]:
        """The inputs (n, d) of every set for every group, without those of padding, in one pass over all texts."""
        model = self._subject.model
        modules: dict[str, list[str]] = {}
        for key in self._keys:
            modules.setdefault(self._matrices[key].tensor.rpartition(".")[0], []).append(key)
        rows_by_group: dict[str, Floats] = {}  # by group, the rows of all sets
        texts, ends, wide_ends = self._texts(sets, budget)
        mask, batch = torch.zeros(0), list[_Text]()
        recent_states: deque[tuple[torch.Tensor, str]] = deque(maxlen=4)  # query, key and value get the same tensor

        def collect(keys: list[str], module: torch.nn.Module, received: tuple[Any, ...]) -> None:
            states = received[0]
            matrix = self._matrices[keys[0]]
            positions = coordinates(matrix.shape, matrix.transposed)
            known_group = (
                next((group for tensor, group in recent_states if tensor is states), None)
                if positions is None
                else None
            )
            for key in keys:
                self._groups[key] = known_group or keys[0]
            if known_group is not None:
                return
            recent_states.append((states, keys[0]))
            rows = states[mask]
            if positions is not None:
                rows = rows[:, torch.from_numpy(positions).to(rows.device)]
            if is_wide := rows.shape[1] > WIDEST:
                first_rows = np.cumsum([0, *(len(text.ids) for text in batch[:-1])])
                row_numbers = np.concatenate([text.wide + first for text, first in zip(batch, first_rows, strict=True)])
                rows = rows[torch.from_numpy(row_numbers).to(rows.device)]
                targets = [np.arange(len(text.wide)) + text.wide_start for text in batch]
            else:
                targets = [np.arange(len(text.ids)) + text.start for text in batch]
            if keys[0] not in rows_by_group:
                rows_by_group[keys[0]] = np.zeros(((wide_ends if is_wide else ends)[-1], rows.shape[1]), np.float32)
            rows_by_group[keys[0]][np.concatenate(targets)] = rows.float().cpu().numpy()

        hooks = []
        for name, keys in modules.items():

            def hook(module: torch.nn.Module, received: tuple[Any, ...], keys: list[str] = keys) -> None:
                collect(keys, module, received)

            hooks.append(model.get_submodule(name).register_forward_pre_hook(hook))
        threads = torch.get_num_threads()  # torch counts all processors of the machine, whatever the quota is
        is_worth_it = self._subject.layers.tokens.shape[1] >= WORTH_THREADS
        torch.set_num_threads(processors() if is_worth_it else min(threads, processors()))
        try:
            for texts_of_batch, ids, attended in self._batches(texts):
                batch, mask = texts_of_batch, attended.bool()
                with torch.inference_mode():
                    self._run(ids, attended)
                recent_states.clear()
                progress(len(ids))
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
            raise AtlasError(
                f"{self._subject.name} cannot be run on texts: {str(error).splitlines()[0][:160]}.", ""
            ) from error
        finally:
            torch.set_num_threads(threads)
            for handle in hooks:
                handle.remove()
        return {
            group: np.split(rows, (wide_ends if rows.shape[1] > WIDEST else ends)[:-1])
            for group, rows in rows_by_group.items()
        }

    def _texts(
        self, sets: Sequence[Sequence[Sequence[int]]], budget: Budget
    ) -> tuple[list[_Text], NDArray[np.int64], NDArray[np.int64]]:
        """The texts of all sets, short texts first; and the ends of each set's rows, for narrow and wide matrices."""
        texts, start, wide_start, ends = [], 0, 0, list[tuple[int, int]]()
        for encoded in sets:
            indices = range(len(encoded)) if len(encoded) <= budget.texts else range(budget.texts)
            encoded_texts = [encoded[index * len(encoded) // len(indices)] for index in indices]
            ordered = sorted((self._cut(ids, budget.tokens) for ids in encoded_texts if ids), key=len)
            total = sum(map(len, ordered))
            wide = np.linspace(0, max(total - 1, 0), min(total, budget.wide)).astype(np.int64)
            first_token = 0
            for ids in ordered:
                wide_tokens = wide[(wide >= first_token) & (wide < first_token + len(ids))] - first_token
                texts.append(_Text(ids, wide_tokens, start, wide_start))
                first_token, start, wide_start = first_token + len(ids), start + len(ids), wide_start + len(wide_tokens)
            ends.append((start, wide_start))
        narrow_ends, wide_ends = np.array(ends, dtype=np.int64).reshape(-1, 2).T
        return sorted(texts, key=lambda text: len(text.ids)), narrow_ends, wide_ends

    def _cut(self, ids: Sequence[int], most: int) -> Sequence[int]:
        """A text cut to at most ``most`` tokens, with its end tokens."""
        end = len(self._end)
        return ids if len(ids) <= most else [*ids[: most - end], *ids[len(ids) - end :]]

    def _run(self, ids: torch.Tensor, attended: torch.Tensor) -> None:
        model = self._subject.model
        options: dict[str, Any] = {"input_ids": ids, "attention_mask": attended}
        if self._subject.stack:  # the decoder also gets the text, shifted by one token
            start = getattr(model.config, "decoder_start_token_id", None) or 0
            options["decoder_input_ids"] = torch.cat([torch.full_like(ids[:, :1], start), ids[:, :-1]], dim=1)
            options["use_cache"] = False
        model(**options)

    def _batches(self, texts: Sequence[_Text]) -> Iterator[tuple[list[_Text], torch.Tensor, torch.Tensor]]:
        """Batches of texts of similar length, with their ids and attention masks (texts, tokens)."""
        padding = self._subject.config.get("pad_token_id")
        padding = padding if isinstance(padding, int) and 0 <= padding < self._vocabulary else 0
        device = self._subject.layers.device
        batch: list[_Text] = []
        for number, text in enumerate(texts):
            batch.append(text)
            following = len(texts[number + 1].ids) if number + 1 < len(texts) else 0
            if following and (len(batch) + 1) * following <= BATCH_TOKENS:
                continue
            width = len(text.ids)
            rows = torch.tensor([[*text.ids, *[padding] * (width - len(text.ids))] for text in batch])
            lengths = torch.tensor([len(text.ids) for text in batch])
            yield batch, rows.to(device), (torch.arange(width) < lengths[:, None]).long().to(device)
            batch = []


def _in_parallel(work: Callable[[str], None], groups: Sequence[str]) -> None:
    """Call ``work`` for each group, each with one thread: decompositions are no faster with several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with one_blas_thread(), ThreadPoolExecutor(processors()) as pool:
            list(pool.map(work, groups))
    finally:
        torch.set_num_threads(threads)


def read_base(base: ModelVersion, keys: Sequence[str], length: int, device: str = "cpu") -> BaseModel:
    """Read and load a base of an atlas, through the cache. Raises AtlasError with the reason if it cannot be run."""
    return BaseModel(read_now(base, device, keep=True), keys, length)
