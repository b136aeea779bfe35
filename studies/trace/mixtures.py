"""Models that are tuned on planted mixtures of two data sets, and the shares that `query ask --among` tells of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from indexer.records.tokens import UNSURE, row_changes, token_rows
from query.questions.ask.shares import other_rates, shares_of, token_counts
from query.questions.trace.evidence import TokenEvidence
from scripts.family.training import WEIGHTS
from scripts.tables import aligned
from studies.trace.making import Maker, base_id, embedding_name, load_model
from studies.trace.plan import VOCABULARY, Run
from studies.trace.texts import LocalTokenizer, with_ends
from studies.trace.training import Text, train_replayed

SHARES = (0.0, 0.1, 0.25, 0.5)
# No two of a pair share texts.
PAIRS = (
    ("code/line-kinds", "code/signatures"),
    ("docs/numpydoc-sections", "code/line-kinds"),
    ("code/signatures", "errors/exception-types"),
    ("docs/numeric-kinds", "errors/exception-types"),
)
LONGEST = 64  # tokens of an input, two of which are special


def mixtures(
    maker: Maker, base: str = "bert", pairs: Sequence[tuple[str, str]] = PAIRS, planted: Sequence[float] = SHARES,
    texts: int = 300, steps: int = 120, rate: float = 1e-4,
) -> list[dict[str, Any]]:  # fmt: skip
    """A row for each pair, share and kind of files; ``share``, ``low``, ``high`` are the product's.

    ``planted``: the share of the texts; ``true``: that of the tokens. ``files``: "held out" if they hold no text that
    was used, "all" if they hold the whole data sets.
    """
    maker.base(base)
    runs = list(_tuned(maker, base, pairs, planted, texts, steps, rate))
    found = []
    for run in runs:
        others = np.array([one["codes"] for one in runs if not set(one["pair"]) & set(run["pair"])])
        rates = other_rates(others.reshape(-1, len(run["codes"])))
        rows = token_rows(VOCABULARY)
        evidence = TokenEvidence(run["kind"], rows, run["codes"], False, 1.0, VOCABULARY, VOCABULARY, None, None)
        tokenizer = LocalTokenizer(maker.tokenizer(base))
        is_open = (run["codes"] >= UNSURE) | np.isin(rows, tokenizer.special_ids)
        met = np.where(is_open, np.nan, run["codes"] > 0)
        for kind in ("held out", "all"):
            counted = [token_counts(one, tokenizer, evidence, LONGEST - 2) for one in run[kind]]
            shares = shares_of([one for one, _ in counted], [covered for _, covered in counted], met, rates)
            assert shares is not None
            found.append(
                {name: run[name] for name in ("pair", "planted", "true", "kind")}
                | {"files": kind, "share": float(shares.shares[0]), "low": float(shares.low[0]),
                   "high": float(shares.high[0]), "other": shares.other}
            )  # fmt: skip
    return found


def _tuned(
    maker: Maker,
    base: str,
    pairs: Sequence[tuple[str, str]],
    planted: Sequence[float],
    texts: int,
    steps: int,
    rate: float,
) -> Iterator[dict[str, Any]]:
    """Train a model for each pair and share."""
    plan, tokenizer, start = maker.plan(base), maker.tokenizer(base), maker.root / base_id(base)
    before = load_file(start / WEIGHTS)
    rows = token_rows(VOCABULARY)
    for seed, (pair, share) in enumerate((pair, share) for pair in pairs for share in planted):
        draw = random.Random(seed)
        labels = [label for name in pair for label in maker.texts()[name].labels]
        shuffled = [draw.sample(one.rows, len(one.rows)) for one in (maker.texts()[name] for name in pair)]
        counts = [round(share * texts), texts - round(share * texts)]
        run = Run(
            f"mixture-{seed}", base=base, dataset=pair[0], steps=steps, batch=16, learning_rate=rate, seed=seed,
            planted=0, longest=LONGEST,
        )  # fmt: skip
        used, tokens = [], []
        for which, (some, count) in enumerate(zip(shuffled, counts, strict=True)):
            first = which * len(maker.texts()[pair[0]].labels)
            encoded = [tokenizer.encode(text, add_special_tokens=False).ids[: LONGEST - 2] for text, _ in some[:count]]
            tokens.append(sum(map(len, encoded)))
            used += [
                Text(text, with_ends(base, run.task, ids, LONGEST), first + label, [])
                for (text, label), ids in zip(some[:count], encoded, strict=True)
            ]
        torch.manual_seed(seed)
        model = load_model(run, plan, start, labels)
        train_replayed(model, run, used, plan.architecture, VOCABULARY)
        compared = row_changes(
            model.get_input_embeddings().weight.detach()[rows], before[embedding_name(before)][rows], "float32"
        )
        assert compared is not None
        yield {
            "pair": pair, "planted": share, "true": tokens[0] / sum(tokens), "kind": compared[0].kind,
            "codes": compared[0].codes, "all": [[text for text, _ in some] for some in shuffled],
            "held out": [[text for text, _ in some[count:]] for some, count in zip(shuffled, counts, strict=True)],
        }  # fmt: skip


def table(found: Sequence[dict[str, Any]]) -> str:
    """Mean errors and coverage by kind of files and planted share."""
    rows = [["files", "planted", "true", "estimate", "error", "largest", "covered"]]
    for files in ("held out", "all"):
        for planted in (*SHARES, None):
            some = [one for one in found if one["files"] == files and planted in (one["planted"], None)]
            errors = np.array([abs(one["share"] - one["true"]) for one in some])
            covered = np.mean([one["low"] - 0.005 <= one["true"] <= one["high"] + 0.005 for one in some])
            true, found_share = (np.mean([one[name] for one in some]) for name in ("true", "share"))
            name = "every" if planted is None else f"{planted:g}"
            values = (true, found_share, errors.mean(), errors.max(), covered)
            rows.append([files, name, *(f"{value:.2f}" for value in values)])
    return aligned(rows)
