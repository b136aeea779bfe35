"""What the Hub would say of a synthetic model: rows as raw as the Hub's own, so that the real code reads them."""

from __future__ import annotations

import hashlib
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from indexer.cards.head import HeadFacts
from scripts.scale.facts import FILES, LANGUAGES, LICENCES, LOG_DOWNLOADS, TASKS
from scripts.scale.labels import Labels

BASE = "atlas-scale/roberta-base-blocks"
ALIAS = "roberta-base-blocks"
_FIRST_DAY = datetime(2021, 3, 1, tzinfo=UTC)
_TAGS = ("transformers", "safetensors", "roberta", "generated_from_trainer", "autotrain_compatible", "region:us")


class Cards:
    """Rows and heads of the models of ``labels``; whatever is drawn depends on the seed and the model alone."""

    def __init__(self, labels: Labels, seed: int) -> None:
        self.labels = labels
        self.seed = seed

    def model(self, number: int) -> str:
        """The id on the Hub."""
        author, dataset = int(self.labels.author[number]), int(self.labels.dataset[number])
        return f"author-{author}/roberta-base-finetuned-d{dataset}-{number}"

    def relation(self, number: int) -> str:
        """What it is to its base: adapter or finetune."""
        return "adapter" if self.labels.is_adapter[number] else "finetune"

    def commit(self, number: int, version: int = 0) -> str:
        """40 hexadecimal digits."""
        return hashlib.sha1(f"{self.seed}|{number}|{version}".encode(), usedforsecurity=False).hexdigest()

    def file_hash(self, number: int, version: int = 0) -> str:
        """sha256 of its weights: that of the model whose upload it repeats."""
        original = int(self.labels.original[number])
        return hashlib.sha256(f"{self.seed}|{original}|{version}".encode()).hexdigest()

    def weight_file(self, number: int) -> str:
        """The name of its weights."""
        return "adapter_model.safetensors" if self.labels.is_adapter[number] else "model.safetensors"

    def head(self, number: int) -> HeadFacts:
        """The head that its config describes."""
        task, head = self._task(self._draw(number))
        labels = 2 + int(self.labels.dataset[number]) % 20
        is_classifier = task == "text-classification"
        problem = "single_label_classification" if is_classifier else None
        return HeadFacts(head, labels if is_classifier else None, None, problem, "roberta")

    def row(self, number: int, version: int = 0) -> dict[str, Any]:
        """The row of a listing."""
        draw = self._draw(number)
        task, head = self._task(draw)
        licence, language = _one_of(draw, LICENCES), _one_of(draw, LANGUAGES)
        created = _FIRST_DAY + timedelta(minutes=draw.randrange(5 * 365 * 24 * 60))
        modified = created + timedelta(hours=draw.randrange(1, 2_000) + version)
        relation, is_adapter = self.relation(number), bool(self.labels.is_adapter[number])
        dataset = self._dataset(number)
        named = bool(self.labels.named[number])
        card: dict[str, Any] = {"tags": ["generated_from_trainer"], "base_model": BASE}
        card |= {"license": licence} if licence else {}
        card |= {"language": [language]} if language else {}
        card |= {"datasets": [dataset]} if named else {}
        tags = [*_TAGS, task, f"base_model:{BASE}", f"base_model:{relation}:{BASE}"]
        tags += [f"license:{licence}"] if licence else []
        tags += [language] if language else []
        tags += [f"dataset:{dataset}"] if named else []
        files = [*FILES, self.weight_file(number), *(["adapter_config.json"] if is_adapter else [])]
        return {
            "id": self.model(number),
            "author": self.model(number).partition("/")[0],
            "sha": self.commit(number, version),
            "createdAt": created.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "lastModified": modified.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
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

    def _dataset(self, number: int) -> str:
        dataset = int(self.labels.dataset[number])
        return f"collection-{dataset % 211}/texts-{dataset}"

    def _task(self, draw: random.Random) -> tuple[str, str]:
        return draw.choices([(task, head) for _, task, head in TASKS], [share for share, _, _ in TASKS])[0]

    def _draw(self, number: int) -> random.Random:
        return random.Random(f"{self.seed}|{number}")


def _one_of(draw: random.Random, shares: tuple[tuple[float, str | None], ...]) -> str | None:
    return draw.choices([value for _, value in shares], [share for share, _ in shares])[0]
