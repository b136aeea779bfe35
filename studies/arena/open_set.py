"""How well `query predict` says "none of these" of models on data sets, or of whole domains, that the atlas lacks.

For every fold some data sets are unknown: the atlas is built without their models, which are then predicted from the Hub.
The models of the atlas are predicted, too: neither a model itself nor others by its author vote.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from query import Atlas
from query.questions.predict.classifier import NONE_OF_THESE
from query.questions.predict.predict import FEWEST_MODELS
from query.questions.predict.scoring import auroc, calibration_error, estimated_share
from scripts.loopback_hub import LoopbackHub
from scripts.tables import decimal, markdown
from scripts.terminal import indexed
from studies.arena.family import Family, asked, build_family, link

Json = dict[str, Any]
Floats = NDArray[np.float64]

SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9)
EVIDENCE = ("vectors", "vocabulary", "head", "together")
SHOWN = ("vectors", "together")  # share by share
PRIORS = ("own", "estimated", "true")
KINDS = ("data sets", "domains")  # what is unknown
NULL = "permuted labels"
NULLS = 2  # folds that are repeated with permuted labels
PARTS = 4  # of the data sets, each of which is unknown once
# What a constant answer says instead of 0 and 1: a certain answer that is wrong once would lose infinitely much.
CERTAIN = 0.99
SMALLEST = 1e-12  # probability that a log loss counts


class Fold(NamedTuple):
    """One choice of the data sets that the atlas lacks."""

    kind: str
    name: str
    unknown: frozenset[str]


def folds_of(datasets: Iterable[str]) -> list[Fold]:
    """Every data set (domain/package) is unknown once among others of all domains, and once with its whole domain."""
    domains = {name: name.partition("/")[0] for name in datasets}
    dealt = sorted(domains, key=lambda name: hashlib.sha256(name.encode()).digest())
    parts = [Fold("data sets", str(part + 1), frozenset(dealt[part::PARTS])) for part in range(PARTS)]
    return parts + [
        Fold("domains", domain, frozenset(name for name, where in domains.items() if where == domain))
        for domain in dict.fromkeys(domains.values())
    ]


def run(out: Path) -> Json:
    """Build an atlas for every fold, predict, and score."""
    family = build_family(out)
    plan = family.plan
    datasets = {run.model: run.dataset for run in plan.runs}
    adapters = {run.model for run in plan.runs if run.adapter}
    folds = folds_of(plan.datasets)
    rows: list[Json] = []
    with LoopbackHub(family.models) as everything:
        for fold, is_null in [*((fold, False) for fold in folds), *((fold, True) for fold in folds[:NULLS])]:
            kind = NULL if is_null else fold.kind
            folder = out / "open_set" / f"{kind.replace(' ', '-')}-{fold.name}"
            atlas = _atlas_without(family, fold, folder, is_null=is_null)
            print(f"predicting {len(datasets)} models, {kind} {fold.name} …", flush=True)
            kept = folder / "predictions.json"
            for one in asked(everything.endpoint, folder, kept, predictions, atlas, plan.base, list(datasets)):
                name = datasets[one["model"]]
                truth = NONE_OF_THESE if name in fold.unknown else name.lower()  # as an atlas writes it
                is_adapter = one["model"] in adapters
                rows.append({"fold": fold.name, "kind": kind, "is_adapter": is_adapter, **_row(one, truth)})
    figures: Json = {"models": len(plan.runs), "datasets": len(plan.datasets), "domains": len(folds) - PARTS}
    for kind in KINDS:
        figures[kind] = scores_of([row for row in rows if row["kind"] == kind])
        of_adapters = scores_of([row for row in rows if row["kind"] == kind and row["is_adapter"]], shares=())
        figures[f"{kind}, adapters"] = {"vectors": of_adapters["vectors"]}
    return figures | {NULL: scores_of([row for row in rows if row["kind"] == NULL])}


def _atlas_without(family: Family, fold: Fold, folder: Path, *, is_null: bool) -> Path:
    """An atlas of a Hub that does not have the models of unknown data sets.

    ``is_null``: the cards of its models name data sets that were permuted among them.
    """
    hub = folder / "hub"
    if not (folder / family.plan.fingerprint).exists():
        shutil.rmtree(folder, ignore_errors=True)
        # What was read of a model is the same in every atlas, so it is not read again.
        for part in ("records", "bases"):
            shutil.copytree(family.atlas() / part, folder / "atlas" / part, copy_function=os.link)
        datasets = {run.model: run.dataset for run in family.plan.runs}
        models = [model for model, name in datasets.items() if name not in fold.unknown]
        named = [datasets[model] for model in models]
        if is_null:
            random.Random(fold.name).shuffle(named)
        for model, name in [(family.plan.base, ""), *zip(models, named, strict=True)]:
            link(family.models, model, hub)
            if is_null and name:
                for file in (hub / model / "README.md", hub / f"{model}.repo.json"):
                    text = file.read_text(encoding="utf-8").replace(datasets[model], name)
                    file.unlink()  # it may be a link to the file of the family
                    file.write_text(text, encoding="utf-8")
    return indexed(hub, folder, family.plan.base, family.plan.fingerprint)


def predictions(atlas: str, base: str, models: Sequence[str]) -> list[Json]:
    """What `query predict` says of every model: all answers, and the prior of "none of these"."""
    found = []
    with Atlas(atlas) as opened:
        # From more models together the prior would be estimated.
        few = FEWEST_MODELS - 1
        for start in range(0, len(models), few):
            for one in opened.predict_many(models[start : start + few], base=base):
                if one.answer is None:
                    raise ValueError(f"{one.asked}: {one.error}")
                answers = [asdict(answer) for answer in one.answer.answers]
                found.append({"model": one.asked, "answers": answers, "unknown_share": one.answer.unknown_share})
    return found


def _row(prediction: Json, truth: str) -> Json:
    """Of one model by every kind of evidence: the probabilities of none, of the best data set, and of the truth.

    ``right``: whether the best data set is the truth. Kinds that the model lacks are left out.
    """
    by: Json = {}
    for evidence in EVIDENCE:
        column = "probability" if evidence == "together" else evidence
        given = {one["dataset"]: one[column] for one in prediction["answers"] if one[column] is not None}
        none = given.pop(NONE_OF_THESE, None)
        if none is not None and given:
            best = max(given, key=lambda name: given[name])
            chances = {
                "none": none,
                "best": given[best],
                "truth": none if truth == NONE_OF_THESE else given.get(truth, 0),
            }
            by[evidence] = chances | {"right": best == truth}
    is_known = truth != NONE_OF_THESE
    return {"model": prediction["model"], "is_known": is_known, "prior": prediction["unknown_share"], "by": by}


def scores_of(rows: Sequence[Json], shares: Sequence[float] = SHARES) -> Json:
    """Of every kind of evidence: AUROC, OSCR, and by unknown share the scores with each way of choosing the prior.

    For a share every fold must have both known and unknown models.
    """
    found: Json = {}
    for evidence in EVIDENCE:
        some = [row for row in rows if evidence in row["by"]]
        if not any(row["is_known"] for row in some) or all(row["is_known"] for row in some):
            continue
        table = _Table(some, evidence)
        found[evidence] = {
            "known": int(table.is_known.sum()),
            "unknown": int((~table.is_known).sum()),
            "auroc": table.auroc(),
            "oscr": oscr(table.best[table.is_known], table.right[table.is_known], table.best[~table.is_known]),
            "accuracy": float(table.right[table.is_known].mean()),
            "shares": {str(share): table.at(share) for share in shares if evidence in SHOWN},
        }
    return found


def oscr(known: Floats, right: NDArray[np.bool_], unknown: Floats) -> float:
    """The area under the open-set classification rate curve (Dhamija, Günther & Boult, 2018).

    The curve has the share of known models that are classified rightly with a score above a threshold over the share of
    unknown models with a score above it. ``known``, ``unknown``: scores of the best known answer, ``right`` whether it
    is true. The area is the probability that a known model is classified rightly and scores higher than an unknown one.
    """
    if not right.any():
        return 0.0
    higher = auroc(known[right], unknown, (np.ones(int(right.sum())), np.ones(len(unknown))))
    assert higher is not None
    return float(right.mean()) * higher


class _Table:
    """Predictions by one kind of evidence as columns; entry i of each is the same model."""

    def __init__(self, rows: Sequence[Json], evidence: str) -> None:
        given = [row["by"][evidence] for row in rows]
        self.none, self.best, self.truth = (
            np.array([one[name] for one in given]) for name in ("none", "best", "truth")
        )
        self.right = np.array([one["right"] for one in given])
        self.is_known = np.array([row["is_known"] for row in rows])
        self.prior = np.array([row["prior"] for row in rows])
        self.folds = np.array([row["fold"] for row in rows])
        # As in `query predict`, models without a vocabulary have no part in the estimate, unless by vectors alone.
        self.counts = np.array([evidence == "vectors" or "vocabulary" in row["by"] for row in rows])

    def auroc(self) -> float:
        """Of the likelihood ratio: priors differ between folds."""
        ratio = self.none / (1 - self.none) * (1 - self.prior) / self.prior
        unknown, known = ratio[~self.is_known], ratio[self.is_known]
        found = auroc(unknown, known, (np.ones(len(unknown)), np.ones(len(known))))
        assert found is not None
        return found

    def weights(self, share: float) -> Floats:
        """How much each model counts, so that this share is unknown; all together 1."""
        return np.where(self.is_known, (1 - share) / self.is_known.sum(), share / (~self.is_known).sum())

    def at(self, share: float) -> Json:
        """Scores if this share is unknown, with the atlas's own prior, an estimated one and the true one."""
        weights = self.weights(share)
        # Of every fold the share is estimated from its own models, as one batch.
        estimated = np.zeros(len(weights))
        for fold in set(self.folds.tolist()):
            mine = (self.folds == fold) & self.counts
            size = {True: (self.is_known & mine).sum(), False: (~self.is_known & mine).sum()}
            each = np.where(self.is_known[mine], (1 - share) / size[True], share / size[False]) * mine.sum()
            estimated[self.folds == fold] = estimated_share(self.none[mine], self.prior[mine], each)
        found: Json = {"estimate": float(weights @ estimated)}
        for name, prior in zip(PRIORS, (self.prior, estimated, np.full(len(weights), share)), strict=True):
            found[name] = self.scores(weights, prior)
        found["constants"] = {
            "always": _log_loss(~self.is_known, np.full(len(weights), CERTAIN), weights),
            "never": _log_loss(~self.is_known, np.full(len(weights), 1 - CERTAIN), weights),
            "share": _log_loss(~self.is_known, np.full(len(weights), share), weights),
        }
        return found

    def scores(self, weights: Floats, prior: Floats) -> Json:
        """Of "none of these" and of the whole prediction with this prior (n,): accuracy, calibration error, log loss."""
        of_none, of_known = prior / self.prior, (1 - prior) / (1 - self.prior)
        total = self.none * of_none + (1 - self.none) * of_known
        none, best = self.none * of_none / total, self.best * of_known / total
        truth = np.where(self.is_known, self.truth * of_known / total, none)
        is_none = none > best
        answers = np.where(is_none, ~self.is_known, self.right & self.is_known)
        counts = weights > 0

        def calibration(confidence: Floats, right: NDArray[np.bool_]) -> float:
            return calibration_error({"confidence": confidence[counts], "right": right[counts]}, weights[counts])

        return {
            "none_accuracy": float(weights @ ((none > 0.5) == ~self.is_known)),
            "none_calibration": calibration(none, ~self.is_known),
            "none_log_loss": _log_loss(~self.is_known, none, weights),
            "accuracy": float(weights @ answers),
            "calibration": calibration(np.maximum(none, best), answers),
            "log_loss": float(weights @ -np.log(np.maximum(truth, SMALLEST))),
        }


def _log_loss(is_true: NDArray[np.bool_], probability: Floats, weights: Floats) -> float:
    of_truth = np.where(is_true, probability, 1 - probability)
    return float(weights @ -np.log(np.maximum(of_truth, SMALLEST)))


def tables(figures: Json) -> str:
    """Markdown: how well unknown data are recognised, and the scores by share."""
    kinds = [*KINDS, *(f"{kind}, adapters" for kind in KINDS), NULL]
    head = ["unknown", "evidence", "known, unknown", "accuracy on the known", "AUROC", "OSCR"]
    rows = [head] + [
        [
            kind,
            evidence,
            f"{one['known']}, {one['unknown']}",
            *(decimal(one[name]) for name in ("accuracy", "auroc", "oscr")),
        ]
        for kind in kinds
        for evidence, one in figures[kind].items()
    ]
    losses = [
        ["unknown", "evidence", "share", "estimate", "own prior", "estimated", "true", "always", "never", "the share"]
    ]
    whole = [
        ["unknown", "evidence", "share", "none: accuracy", "calibration", "whole: accuracy", "calibration", "log loss"]
    ]
    for kind in (*KINDS, NULL):
        for evidence in SHOWN if kind in KINDS else SHOWN[-1:]:
            for share, at in figures[kind][evidence]["shares"].items():
                which = [kind, evidence, decimal(float(share), 2)]
                constants = (decimal(at["constants"][name]) for name in ("always", "never", "share"))
                priors = (decimal(at[prior]["none_log_loss"]) for prior in PRIORS)
                losses.append([*which, decimal(at["estimate"], 2), *priors, *constants])
                measures = ("none_accuracy", "none_calibration", "accuracy", "calibration", "log_loss")
                if kind in KINDS:
                    whole.append(
                        [*which, *(f"{decimal(at['own'][one])} → {decimal(at['estimated'][one])}" for one in measures)]
                    )
    return "\n\n".join(
        [
            markdown(rows),
            'Log loss of "none of these":',
            markdown(losses),
            "With the atlas's own prior → with the estimated one:",
            markdown(whole),
        ]
    )
