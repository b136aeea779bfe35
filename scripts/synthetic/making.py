"""A synthetic atlas: base, listing and records, written by the indexer's own code. Publishing it is what is measured."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from indexer.atlas import AtlasFolder
from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.deltas.base import BaseMatrices, store_base
from indexer.listing.listing import Listing
from indexer.records.identity import Identity, Spec
from indexer.records.record import DeltaRecord, Record, StoredFile, TokenChanges
from indexer.records.representations.registry import DEFAULT, representation_named
from indexer.records.store import RecordStore
from indexer.records.tokens import EXACT, codes_of_sizes, token_rows
from indexer.sources.cards.modelcard import HeadFacts
from indexer.sources.claims import Claim
from indexer.sources.questions import ClaimedRow, CrawlRequest, Page, Question
from indexer.sources.registry import ModelRef
from scripts.loopback_hub.store import hub_time
from scripts.synthetic.population import (
    ENERGY,
    FILES,
    LANGUAGES,
    LAYERS,
    LICENCES,
    LOG_DOWNLOADS,
    RELATIVE_NORM,
    TASKS,
    Floats,
    Labels,
    Population,
)

BASE = "atlas-scale/roberta-base-blocks"
ALIAS = "roberta-base-blocks"
BASE_COMMIT = "0" * 40
RANK = 8
# The width of block matrices, not 768: nothing that is measured reads them.
WIDTH = 64
# Rows of the input embedding, as roberta-base has them. Of a token's frequency this is the exponent in Zipf's law.
VOCABULARY, ZIPF = 50_265, 1.0
# A record is synced before it is renamed; this many wait for the disk at once.
WRITERS = 8
# Models whose vectors are drawn at once: 16 MB of them.
DRAWN_AT_ONCE = 512

_ROWS_OF_PAGE = 1_000
_FIRST_DAY = datetime(2021, 3, 1, tzinfo=UTC)
_TAGS = ("transformers", "safetensors", "roberta", "generated_from_trainer", "autotrain_compatible", "region:us")


class Maker:
    """Writes the atlas of ``population`` into ``root``. Models are numbered as in the population.

    Rows of the listing are as raw as the Hub's own, so that the real code reads them.
    """

    def __init__(self, root: Path, population: Population) -> None:
        self.folder = AtlasFolder(root)
        self.population = population
        self.labels = population.labels
        self.listing = Listing(self.folder.listing(BASE))
        self.store = RecordStore(self.folder)
        path = self.folder.base(BASE, BASE_COMMIT)
        if not path.is_file():
            checkpoint = open_checkpoint(ModelRef.parse(str(make_checkpoint(root.parent / "base"))))
            store_base(checkpoint, BASE, BASE_COMMIT, path)
            checkpoint.close()
        base = BaseMatrices(path)
        self.matrices = [(matrix.key, matrix.shape, base.norms[matrix.key]) for matrix in base.layout.matrices]
        # (families, rank): singular values of a delta of norm 1 whose squares add up to ENERGY at 1, 2, 4, 8.
        at, wanted = np.log2(1 + np.array([0, 1, 2, 4, 8])), np.log2(1 + np.arange(RANK + 1))
        energy = np.stack([np.diff(np.interp(wanted, at, (0, *shares))) for shares in ENERGY])
        self._singular = np.tile(np.sqrt(-np.sort(-energy, axis=1)), (LAYERS, 1))

    def crawl(self, models: range) -> None:
        """List models like a crawl that finds exactly these."""
        self.listing.begin(CrawlRequest(ids=(BASE, ALIAS)))
        question = Question("tag", BASE)
        for number, start in enumerate(range(0, len(models), _ROWS_OF_PAGE), start=1):
            rows = tuple(
                ClaimedRow(self.row(model), Claim(self.relation(model), "tag", BASE))
                for model in models[start : start + _ROWS_OF_PAGE]
            )
            self.listing.append_page(Page(question, rows, next_link=f"https://hub.invalid/?page={number + 1}"))
        self.listing.append_page(Page(question, is_last=True))
        self.listing.finish(is_complete=True)

    def record(self, models: range, by: range | None = None, version: int = 0) -> None:
        """Write the records of ``models``, with the vectors of the models ``by`` (default: their own)."""
        drawn = by or models
        with ThreadPoolExecutor(WRITERS) as pool:
            for place in range(0, len(models), DRAWN_AT_ONCE):
                some = models[place : place + DRAWN_AT_ONCE]
                vectors = self.population.vectors(drawn[place], drawn[place] + len(some))
                records = [self._record(model, vector, version) for model, vector in zip(some, vectors, strict=True)]
                list(pool.map(self.store.write, records))

    def add(self, models: range) -> None:
        """List and record more models."""
        for model in models:
            self.listing.add(self.row(model), self.relation(model), BASE)
        self.record(models)

    def replace(self, models: range, by: range) -> None:
        """Give models a new commit, with the vectors of other models (of the population, not of the atlas)."""
        for model in models:
            self.listing.add(self.row(model, 1), self.relation(model), BASE)
        self.record(models, by, version=1)

    def withdraw(self, models: Iterable[int]) -> None:
        """Remove models' records, as `index rebuild` does with damaged ones: a publish then removes their vectors."""
        for model in models:
            self.store.discard(self._identity(model, 0).digest)

    def model(self, number: int) -> str:
        """The id on the Hub."""
        return f"author-{self.labels.author[number]}/roberta-base-finetuned-d{self.labels.dataset[number]}-{number}"

    def relation(self, number: int) -> str:
        """Adapter or finetune."""
        return "adapter" if self.labels.is_adapter[number] else "finetune"

    def row(self, number: int, version: int = 0) -> dict[str, Any]:
        """The row of a listing."""
        draw = random.Random(f"{self.population.seed}|{number}")
        task, head = self._task(draw)
        is_adapter = bool(self.labels.is_adapter[number])
        card: dict[str, Any] = {"tags": ["generated_from_trainer"], "base_model": BASE}
        tags = [*_TAGS, task, f"base_model:{BASE}", f"base_model:{self.relation(number)}:{BASE}"]
        licence, language = (
            draw.choices([value for _, value in shares], [share for share, _ in shares])[0]
            for shares in (LICENCES, LANGUAGES)
        )
        if licence:
            card["license"] = licence
            tags.append(f"license:{licence}")
        if language:
            card["language"] = [language]
            tags.append(language)
        if self.labels.named[number]:
            dataset = int(self.labels.dataset[number])
            card["datasets"] = [f"collection-{dataset % 211}/texts-{dataset}"]
            tags.append(f"dataset:{card['datasets'][0]}")
        created = _FIRST_DAY + timedelta(minutes=draw.randrange(5 * 365 * 24 * 60))
        modified = created + timedelta(hours=draw.randrange(1, 2_000) + version)
        files = [*FILES, self._weight_file(number)[0], *(["adapter_config.json"] if is_adapter else [])]
        return {
            "id": self.model(number),
            "author": self.model(number).partition("/")[0],
            "sha": self._commit(number, version),
            "createdAt": hub_time(created),
            "lastModified": hub_time(modified),
            "downloads": max(0, round(2.718281828 ** draw.gauss(*LOG_DOWNLOADS) - 1)),
            "likes": int(draw.paretovariate(1.2)) - 1,
            "private": False,
            "disabled": False,
            "gated": False,
            "library_name": "peft" if is_adapter else "transformers",
            "pipeline_tag": task,
            "tags": tags,
            "cardData": card,
            "config": {"architectures": [head], "model_type": "roberta"},
            "siblings": [{"rfilename": name} for name in files],
        }

    def _record(self, model: int, vector: Floats, version: int) -> Record:
        """As `--no-keep-factors` leaves it: vectors, norms and singular values."""
        changed = np.linalg.norm(vector.reshape(len(self.matrices), -1), axis=1) > 0
        original = int(self.labels.original[model])
        rng = np.random.default_rng([self.population.seed, 3, original, version])
        uneven = np.exp(0.2 * rng.standard_normal(len(self.matrices)))
        norms = np.array([norm for _, _, norm in self.matrices]) * rng.uniform(*RELATIVE_NORM) * uneven * changed
        singular = (norms[:, None] * self._singular).astype(np.float32)
        task, head = self._task(random.Random(f"{self.population.seed}|{model}"))
        is_classifier = task == "text-classification"
        labels = 2 + int(self.labels.dataset[model]) % 20 if is_classifier else None
        problem = "single_label_classification" if is_classifier else None
        # A repeated upload has the hash of what it repeats.
        file_hash = hashlib.sha256(f"{self.population.seed}|{original}|{version}".encode()).hexdigest()
        name, size, form = self._weight_file(model)
        block_bytes = int(0.68 * size)
        return Record(
            identity=self._identity(model, version),
            deltas=tuple(
                DeltaRecord(key=key, shape=shape, norm=norm, base_norm=base_norm, inner=0.0, s=values)
                for (key, shape, base_norm), norm, values in zip(self.matrices, norms.tolist(), singular, strict=True)
            ),
            files=(StoredFile(name, size, file_hash, form),),
            head=asdict(HeadFacts(head, labels, None, problem, "roberta")),
            dtype="float32",
            bytes_read=block_bytes,
            block_bytes=block_bytes,
            seconds=0.5,
            created="2026-01-01T00:00:00+00:00",
            tokens=None if self.labels.is_adapter[model] else self._tokens(model, rng),
            # As the representation leaves it: every block that was changed has unit norm.
            vectors={representation_named(DEFAULT).tag: vector * np.float32(np.sqrt(max(1, changed.sum())))},
        )

    def _tokens(self, model: int, rng: np.random.Generator) -> TokenChanges:
        """Rows of tokens that its data set has, by Zipf's law in an order that is partly the data set's own."""
        rows = len(token_rows(VOCABULARY))
        own = np.random.default_rng([self.population.seed, 4, int(self.labels.dataset[model])])
        frequencies = 1 / (1 + np.arange(rows) * np.exp(own.standard_normal(rows))) ** ZIPF
        counts = rng.poisson(3_000 * frequencies / frequencies.sum())
        sizes = 2.0**-10 * np.sqrt(counts) * np.exp(0.3 * rng.standard_normal(rows))
        codes = np.where(counts > 0, codes_of_sizes(sizes), 0).astype(np.uint8)
        return TokenChanges(codes, 1.0, VOCABULARY, VOCABULARY, EXACT, is_share=False)

    def _identity(self, model: int, version: int) -> Identity:
        spec = Spec(rank=RANK)
        commit = self._commit(model, version)
        return Identity(self.model(model), commit, BASE, BASE_COMMIT, self.relation(model), spec)

    def _commit(self, number: int, version: int) -> str:
        return hashlib.sha1(f"{self.population.seed}|{number}|{version}".encode(), usedforsecurity=False).hexdigest()

    def _weight_file(self, number: int) -> tuple[str, int, str]:
        """Name, size and form of the weights."""
        if self.labels.is_adapter[number]:
            return "adapter_model.safetensors", 1_190_000, "adapter_safetensors"
        return "model.safetensors", 498_600_000, "safetensors"

    @staticmethod
    def _task(draw: random.Random) -> tuple[str, str]:
        """Task and class of the head; the first thing that is drawn for a model."""
        return draw.choices([(task, head) for _, task, head in TASKS], [share for share, _, _ in TASKS])[0]


def record_all(maker: Maker, models: int, processes: int = 2) -> None:
    """Write the records of the first models, each part of them in a process of its own."""
    parts = [range(int(part[0]), int(part[-1]) + 1) for part in np.array_split(np.arange(models), processes)]
    write = partial(_record_part, maker.folder.root, maker.labels, maker.population.seed)
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        list(pool.map(write, parts))


def _record_part(root: Path, labels: Labels, seed: int, models: range) -> None:
    Maker(root, Population(labels, seed)).record(models)


def make_checkpoint(folder: Path, seed: int = 0) -> Path:
    """A random RoBERTa of twelve narrow layers: the base, or with another seed a model that is in no atlas."""
    import torch
    from transformers import RobertaConfig, RobertaModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    if not (folder / "model.safetensors").is_file():
        torch.manual_seed(0)
        config = RobertaConfig.from_dict(
            {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_attention_heads": 4, "vocab_size": VOCABULARY}
            | {"num_hidden_layers": LAYERS, "max_position_embeddings": 32}
        )
        model = RobertaModel(config, add_pooling_layer=False)
        torch.manual_seed(seed)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.001 * torch.randn_like(weight), alpha=float(seed != 0))
        model.save_pretrained(folder)
    return folder
