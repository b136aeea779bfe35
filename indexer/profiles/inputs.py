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
TOKENS_EACH = 64  # of a text that are counted; the rest is left out, as more texts say more than longer ones
BATCH_TOKENS = 1024  # with padding
WIDEST = 1024  # matrices with more inputs get the inputs of fewer tokens
# A base of this width runs on all processors. Smaller matrices, and eigenvectors, take longer on several threads.
WORTH_THREADS = 512
# Eigenvectors of the reference with eigenvalues below this share of the ridge are not kept: they are hardly whitened.
_NEGLIGIBLE = 0.02
# A block of a smaller norm is only rounding.
_NOTHING = 1e-9
_STARTS, _ENDS = ("[CLS]", "<s>"), ("[SEP]", "</s>")

Progress = Callable[[int], None]  # called with the number of texts that were done since the last call


@dataclass(frozen=True)
class Budget:
    """How much of a set of texts is used: at most ``texts`` of them, evenly spaced, and the first ``tokens`` of each.

    ``wide``: the number of tokens that are used for a matrix of more than ``WIDEST`` inputs, evenly spaced.
    """

    texts: int
    tokens: int
    wide: int


# Inputs depend on their positions, so texts that are compared are cut alike.
ASKED, OF_A_SET = Budget(100, 16, 256), Budget(4, 16, 16)


@dataclass(frozen=True)
class _Text:
    """A text of a pass; which of its tokens wide matrices get, and the first of its rows among all rows, for either."""

    ids: Sequence[int]
    wide: NDArray[np.int64]
    start: int
    wide_start: int


class BaseModel:
    """A base that texts are run through. ``keys``: the names of its matrices, in the order of a vector's blocks."""

    def __init__(self, subject: Subject, keys: Sequence[str], length: int) -> None:
        if subject.layers.takes_images:
            raise AtlasError(f"{subject.name} takes images, so it cannot be asked about texts.", "Name a text model.")
        self._subject, self._keys, self._length = subject, list(keys), length
        self._tokenizer = require_tokenizer(subject.tokenizer, subject.name, "Only bases with a tokenizer can be used.")
        self._longest = fitting_tokens(subject.layers, TOKENS_EACH)
        self._vocabulary = len(subject.layers.tokens)
        # The ids that a text begins and ends with, as the tokenizers of BERT, RoBERTa and T5 add them.
        ids = self._tokenizer.special_ids
        special = dict(zip(self._tokenizer.words(ids), ids, strict=True))
        self._start = [special[word] for word in _STARTS if word in special][:1]
        self._end = [special[word] for word in _ENDS if word in special][:1]
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

    def reference(
        self,
        sets: Sequence[Sequence[Sequence[int]]],
        own: int,
        progress: Progress = lambda count: None,
        budget: Budget = OF_A_SET,
    ) -> tuple[ReferenceMoments, Floats]:
        """The moments of the first ``own`` of some sets of encoded texts, and the ``blocks`` of all sets."""
        values, vectors, ridges = dict[str, Floats](), dict[str, Floats](), dict[str, float]()
        roots = np.zeros((len(self._keys), self._length), np.float32)
        found = np.zeros((len(sets), len(self._keys), self._length), np.float32)

        def decompose(group: str) -> None:
            inputs = collected.pop(group)
            held, directions = moment_eigenvectors(np.concatenate(inputs[:own]))
            ridge = max(RIDGE * float(held.max(initial=0.0)), 1e-12)
            root = np.sqrt(held / (held + ridge))
            for key in self._keys_of(group):
                roots[self._keys.index(key)] = convolved(*self._sketches(key, directions), root)
            kept = held > _NEGLIGIBLE * ridge
            values[group], vectors[group] = held[kept].astype(np.float32), directions[:, kept].astype(np.float32)
            ridges[group] = ridge
            self._compare(group, inputs, Whitener(values[group], vectors[group], ridge), found)

        collected = self._collected(sets, progress, budget)
        _at_once(decompose, list(collected))
        return ReferenceMoments(values, vectors, ridges, roots), unit_norm(found - roots, _NOTHING)

    def blocks(
        self,
        sets: Sequence[Sequence[Sequence[int]]],
        whitening: ReferenceMoments,
        progress: Progress = lambda count: None,
        budget: Budget = ASKED,
    ) -> Floats:
        """(sets, blocks, length) each set of encoded texts as a vector: blocks of unit norm, or zero."""
        found = np.zeros((len(sets), len(self._keys), self._length), np.float32)

        def compare(group: str) -> None:
            white = Whitener(whitening.values[group], whitening.vectors[group], whitening.ridges[group])
            self._compare(group, collected.pop(group), white, found)

        collected = self._collected(sets, progress, budget)
        _at_once(compare, [group for group in collected if group in whitening.vectors])
        return unit_norm(found - whitening.roots, _NOTHING)

    def _compare(self, group: str, inputs: Sequence[Floats], white: Whitener, found: Floats) -> None:
        """Sketch (W M W)^½ of the inputs x of every set, for all matrices of a group, into ``found``.

        With B = W [x₁ x₂ …] / √n and BᵀB = Q μ Qᵀ it is (B Q) μ^-½ (B Q)ᵀ, and CountSketches of B Q are those of B
        times Q. Where a set has more inputs than the matrix, the eigenvectors of W M W take less time.
        """
        keys = {self._keys.index(key): key for key in self._keys_of(group)}
        ends = np.cumsum([len(rows) for rows in inputs])
        narrow = [place for place, rows in enumerate(inputs) if 0 < len(rows) < rows.shape[1]]
        if narrow:
            rows = np.concatenate(inputs)
            projected, rest = white.parts(rows)
            scaled = projected * white.scale
            sketches = {}
            for place, key in keys.items():
                of_vectors, of_rest = self._sketches(key, white.vectors), self._sketches(key, rest.T)
                sketches[place] = [
                    one * white.ridge**-0.5 + other @ scaled.T for one, other in zip(of_rest, of_vectors, strict=True)
                ]
        for number, rows in enumerate(inputs):
            count = max(1, len(rows))
            if number in narrow:
                some = slice(ends[number] - len(rows), ends[number])
                gram = rest[some] @ rest[some].T / np.float32(white.ridge)
                gram += (projected[some] * white.squares) @ projected[some].T
                values, turns = eigenvectors(gram / count)
                kept = values > 1e-6 * max(float(values[-1]), 1e-30)
                turns, weights = turns[:, kept], 1 / np.sqrt(values[kept]) / count
                for place in keys:
                    first, second = (one[:, some] @ turns for one in sketches[place])
                    found[number, place] = convolved(first, second, weights)
            elif len(rows):
                values, vectors = eigenvectors(white.whitened(rows.T @ rows / count))
                for place, key in keys.items():
                    found[number, place] = convolved(*self._sketches(key, vectors), np.sqrt(values))

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

    def _collected(
        self, sets: Sequence[Sequence[Sequence[int]]], progress: Progress, budget: Budget
    ) -> dict[str, list[Floats]]:
        """The inputs (n, d) of every set for every group, in one pass over all texts, without what padding gives."""
        model = self._subject.model
        modules: dict[str, list[str]] = {}
        for key in self._keys:
            modules.setdefault(self._matrices[key].tensor.rpartition(".")[0], []).append(key)
        found: dict[str, Floats] = {}  # by group, the rows of all sets
        texts, ends, wide_ends = self._texts(sets, budget)
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
            rows = states[mask]
            if held is not None:
                rows = rows[:, torch.from_numpy(held).to(rows.device)]
            if is_wide := rows.shape[1] > WIDEST:
                before = np.cumsum([0, *(len(text.ids) for text in batch[:-1])])
                some = np.concatenate([text.wide + first for text, first in zip(batch, before, strict=True)])
                rows = rows[torch.from_numpy(some).to(rows.device)]
                targets = [np.arange(len(text.wide)) + text.wide_start for text in batch]
            else:
                targets = [np.arange(len(text.ids)) + text.start for text in batch]
            if keys[0] not in found:
                found[keys[0]] = np.zeros(((wide_ends if is_wide else ends)[-1], rows.shape[1]), np.float32)
            found[keys[0]][np.concatenate(targets)] = rows.float().cpu().numpy()

        hooks = []
        for name, keys in modules.items():

            def hook(module: torch.nn.Module, received: tuple[Any, ...], keys: list[str] = keys) -> None:
                collect(keys, module, received)

            hooks.append(model.get_submodule(name).register_forward_pre_hook(hook))
        threads = torch.get_num_threads()  # torch counts all processors of the machine, whatever the quota is
        is_worth_it = self._subject.layers.tokens.shape[1] >= WORTH_THREADS
        torch.set_num_threads(processors() if is_worth_it else min(threads, processors()))
        try:
            for some, ids, attended in self._batches(texts):
                batch, mask = some, attended.bool()
                with torch.inference_mode():
                    self._run(ids, attended)
                seen.clear()
                progress(len(ids))
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
            raise AtlasError(
                f"{self._subject.name} cannot be run on texts: {str(error).splitlines()[0][:160]}.", ""
            ) from error
        finally:
            torch.set_num_threads(threads)
            for one in hooks:
                one.remove()
        return {
            group: np.split(rows, (wide_ends if rows.shape[1] > WIDEST else ends)[:-1]) for group, rows in found.items()
        }

    def _texts(
        self, sets: Sequence[Sequence[Sequence[int]]], budget: Budget
    ) -> tuple[list[_Text], NDArray[np.int64], NDArray[np.int64]]:
        """The texts of all sets, short ones first, and where the rows of each set end, for narrow and wide matrices."""
        texts, start, wide_start, ends = [], 0, 0, list[tuple[int, int]]()
        for encoded in sets:
            places = range(len(encoded)) if len(encoded) <= budget.texts else range(budget.texts)
            some = [encoded[place * len(encoded) // len(places)] for place in places]
            ordered = sorted((self._cut(ids, budget.tokens) for ids in some if ids), key=len)
            total = sum(map(len, ordered))
            wide = np.linspace(0, max(total - 1, 0), min(total, budget.wide)).astype(np.int64)
            before = 0
            for ids in ordered:
                own = wide[(wide >= before) & (wide < before + len(ids))] - before
                texts.append(_Text(ids, own, start, wide_start))
                before, start, wide_start = before + len(ids), start + len(ids), wide_start + len(own)
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


def _at_once(work: Callable[[str], None], groups: Sequence[str]) -> None:
    """Do the work of each group, each with one thread: decompositions are no faster with several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with one_blas_thread(), ThreadPoolExecutor(processors()) as pool:
            list(pool.map(work, groups))
    finally:
        torch.set_num_threads(threads)


def read_base(name: str, commit: str | None, keys: Sequence[str], length: int, device: str = "cpu") -> BaseModel:
    """Read and load a base of an atlas, by the cache. Raises AtlasError that says why it cannot be run on texts."""
    return BaseModel(read_now(ModelVersion.of_atlas(name, commit), device, keep=True), keys, length)
