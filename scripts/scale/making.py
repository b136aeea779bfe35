"""A synthetic atlas as the indexer would have made it: base, listing and records, written by the indexer's own code.

Nothing here publishes: that is what is measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from indexer.atlas import AtlasFolder
from indexer.deltas.base import BaseMatrices, store_base
from indexer.listing.claims import Claim
from indexer.listing.listing import Listing
from indexer.listing.questions import ClaimedRow, CrawlRequest, Page, Question
from indexer.names import ModelRef
from indexer.records.identity import SVD_METHOD, Identity, Spec
from indexer.records.record import DeltaRecord, Record, StoredFile
from indexer.records.representation import DEFAULT, representation_named
from indexer.records.store import RecordStore
from indexer.weights.checkpoint import open_checkpoint
from scripts.scale.cards import ALIAS, BASE, Cards
from scripts.scale.facts import ENERGY, FAMILIES, LAYERS, RELATIVE_NORM
from scripts.scale.labels import Labels
from scripts.scale.population import Floats, Population

RANK = 8
BASE_COMMIT = "0" * 40
_PAGE = 1_000
_SIZES = {"model.safetensors": 498_600_000, "adapter_model.safetensors": 1_190_000}

# Block matrices are this wide, not 768: what is measured here never looks into them.
WIDTH = 64

# A record is synced before it is renamed; this many wait for the disk at once.
_WRITERS = 8

# Models whose vectors are drawn at once: 8 MB of them.
_STRETCH = 512


class Maker:
    """Writes the atlas of ``population`` into ``root``; models are known by their numbers in it."""

    def __init__(self, root: Path, population: Population) -> None:
        self.folder = AtlasFolder(root)
        self.population = population
        self.cards = Cards(population.labels, population.seed)
        self.listing = Listing(self.folder.listing(BASE))
        self.store = RecordStore(self.folder)
        self.base = self._stored_base()
        self._matrices = [
            (matrix.key, matrix.shape, self.base.norms[matrix.key]) for matrix in self.base.layout.matrices
        ]
        self._base_norms = np.array([norm for _, _, norm in self._matrices])

    def crawl(self, models: range) -> None:
        """List models as a crawl would that finds just these."""
        request = CrawlRequest(ids=(BASE, ALIAS))
        self.listing.begin(request)
        question = Question("tag", BASE)
        for number, start in enumerate(range(0, len(models), _PAGE), start=1):
            rows = tuple(
                ClaimedRow(self.cards.row(model), Claim(self.cards.relation(model), "tag", BASE))
                for model in models[start : start + _PAGE]
            )
            self.listing.append_page(Page(question, number, rows, next_link=f"https://hub.invalid/?page={number + 1}"))
        self.listing.append_page(Page(question, 0, is_last=True))
        self.listing.finish(is_complete=True)

    def record(self, models: range) -> None:
        """Write the records of models that follow each other."""
        self._write(models, self.population.vectors(models.start, models.stop), 0)

    def add(self, models: range) -> None:
        """List and record more models."""
        for model in models:
            self.listing.add(self.cards.row(model), self.cards.relation(model), BASE)
        self.record(models)

    def replace(self, models: range, by: range) -> None:
        """Give models a new commit, whose vectors are those of other models (of the population, not of the atlas)."""
        for model in models:
            self.listing.add(self.cards.row(model, 1), self.cards.relation(model), BASE)
        self._write(models, self.population.vectors(by.start, by.stop), 1)

    def withdraw(self, models: Iterable[int]) -> None:
        """Take models' records away, as `index rebuild` does with damaged ones: their vectors have to go."""
        for model in models:
            self.store.discard(self._identity(model, 0).digest)

    def _write(self, models: range, vectors: Floats, version: int) -> None:
        with ThreadPoolExecutor(_WRITERS) as pool:
            records = (self._record(model, vector, version) for model, vector in zip(models, vectors, strict=True))
            for _ in pool.map(self.store.write, records):
                pass

    def _identity(self, model: int, version: int) -> Identity:
        cards = self.cards
        spec = Spec(rank=RANK, svd=SVD_METHOD)
        return Identity(
            cards.model(model), cards.commit(model, version), BASE, BASE_COMMIT, cards.relation(model), spec
        )

    def _record(self, model: int, vector: Floats, version: int) -> Record:
        """As `--no-keep-factors` leaves it: vectors, norms and singular values."""
        changed = np.linalg.norm(vector.reshape(len(self._matrices), -1), axis=1) > 0
        singular, norms = self._sizes(model, version, changed)
        name = self.cards.weight_file(model)
        prefix = "adapter_" if self.population.labels.is_adapter[model] else ""
        block_bytes = int(0.68 * _SIZES[name])
        return Record(
            identity=self._identity(model, version),
            deltas=tuple(
                DeltaRecord(key=key, shape=shape, norm=norm, base_norm=base_norm, inner=0.0, s=values)
                for (key, shape, base_norm), norm, values in zip(self._matrices, norms.tolist(), singular, strict=True)
            ),
            files=(StoredFile(name, _SIZES[name], self.cards.file_hash(model, version), f"{prefix}safetensors"),),
            head=asdict(self.cards.head(model)),
            dtype="float32",
            bytes_read=block_bytes,
            block_bytes=block_bytes,
            seconds=0.5,
            created="2026-01-01T00:00:00+00:00",
            # As the representation leaves it: every block that was changed has unit norm.
            vectors={representation_named(DEFAULT).tag: vector * np.float32(np.sqrt(max(1, changed.sum())))},
        )

    def _sizes(self, model: int, version: int, changed: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.float64]]:
        """Singular values (deltas, rank) and norms (deltas,) with the energies of real deltas."""
        original = int(self.population.labels.original[model])
        rng = np.random.default_rng([self.population.seed, 3, original, version])
        uneven = np.exp(0.2 * rng.standard_normal(len(self._base_norms)))
        norms = self._base_norms * rng.uniform(*RELATIVE_NORM) * uneven * changed
        return (norms[:, None] * np.tile(_SHARES, (LAYERS, 1))).astype(np.float32), norms

    def _stored_base(self) -> BaseMatrices:
        """The base's block matrices, of a base that is made on the spot."""
        path = self.folder.base(BASE, BASE_COMMIT)
        if not path.is_file():
            checkpoint = open_checkpoint(ModelRef.parse(str(make_checkpoint(self.folder.root.parent / "base"))))
            try:
                store_base(checkpoint, BASE, BASE_COMMIT, path)
            finally:
                checkpoint.close()
        return BaseMatrices(path)


def record_all(maker: Maker, models: range, processes: int = 2) -> None:
    """Write the records of many models, stretch by stretch, in processes of their own."""
    stretches = [models[start : start + _STRETCH] for start in range(0, len(models), _STRETCH)]
    given = (maker.folder.root, maker.population.labels, maker.population.seed)
    with ProcessPoolExecutor(processes, get_context("spawn"), _become_maker, given) as pool:
        for _ in pool.map(_record, stretches):
            pass


_maker: Maker | None = None


def _become_maker(root: Path, labels: Labels, seed: int) -> None:
    global _maker
    _maker = Maker(root, Population(labels, seed))


def _record(models: range) -> None:
    assert _maker is not None
    _maker.record(models)


def make_checkpoint(folder: Path, seed: int = 0) -> Path:
    """A random RoBERTa of twelve narrow layers: the base, or (another seed) a model that is in no atlas."""
    import torch
    from transformers import RobertaConfig, RobertaModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    if not (folder / "model.safetensors").is_file():
        torch.manual_seed(0)
        config = RobertaConfig.from_dict(
            {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_attention_heads": 4, "vocab_size": 64}
            | {"num_hidden_layers": LAYERS, "max_position_embeddings": 32}
        )
        model = RobertaModel(config, add_pooling_layer=False)
        torch.manual_seed(seed)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.001 * torch.randn_like(weight), alpha=float(seed != 0))
        model.save_pretrained(folder)
    return folder


def _singular_shares() -> Floats:
    """(families, rank): singular values of a delta of norm 1 whose squares add up to ENERGY at 1, 2, 4, 8."""
    at = np.log2(1 + np.array([0, 1, 2, 4, 8]))
    wanted = np.log2(1 + np.arange(RANK + 1))
    energy = np.stack([np.diff(np.interp(wanted, at, (0, *shares))) for shares in ENERGY])
    return np.sqrt(-np.sort(-energy, axis=1)).astype(np.float32)


_SHARES = _singular_shares()
assert len(_SHARES) == len(FAMILIES)
