"""Made-up answers and results."""

from __future__ import annotations

from scripts.reproduce.study import BaseResults, Counts, Reply, Results


def score(purity, **more):
    numbers = {"chance": 0.1, "ci_low": 0.2, "ci_high": 0.9, "p_value": 0.001}
    return {"purity": purity, **(numbers if purity is not None else {}), **more}


def purity_answer(plain, across, dataset="glue"):
    rows = [{"dataset": dataset, "models": 4, "purity": plain, "chance": 0.25}] if plain is not None else []
    note = {} if plain is not None else {"note": "No two models share a dataset."}
    return score(plain, cross_author=score(across), by_dataset=rows, models=9, datasets=2, **note)


def reply(name, answer, file=None, error=None):
    return Reply(name, f"query {name}", 1.5, answer, file, error)


def base_results(base="org/one", **purities):
    made = {f"purity-{name}": reply(f"purity-{name}", answer) for name, answer in purities.items()}
    return BaseResults(
        "roberta-base", base, "c" * 40, Counts(7, 2, 1, 3, 1, 0, 1, 2, 4, 3, {"gated": 2}), 5_000_000,
        None, made, {"build": 10.0, "purity": 2.5},
    )  # fmt: skip


def results(*of):
    return Results("somewhere", None, 50, of, {"seed": 3.0}, "figures/purity.png", {"python": "3.11"})
