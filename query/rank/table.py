"""Ranks by depth on a terminal of eighty columns: the equations, then a line for each layer."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from query.rank.families import RanksByFamily

DIGITS = 6  # ranks stand one below the other up to 9999.9


def sheet(study: RanksByFamily) -> dict[str, Any]:
    """The same numbers as ``RanksByFamily.to_dict``, shorter: the best form of each family, and mean ranks."""
    fits = {name: family.fit for name, family in study.families.items()}
    return {
        "base": study.base,
        **({"model": study.model} if study.model else {}),
        "rank of": {"delta": "δW", "weights": "W"}[study.of] + f" at {100 * study.threshold:g} % of the energy",
        "models": study.models,
        **({"relations": list(study.relations)} if study.relations else {}),
        "left out": study.left_out.words() or "none",
        "lacking spectra": len(study.lacking),
        "best fit (x = layer)": [
            {"family": name, "equation": fit.equation, "loo_error": fit.loo_error, "form": fit.form}
            for name, fit in fits.items()
            if fit is not None
        ],
        **{f"mean rank{title}": _by_layer(study, names) for title, names in _panels(study).items()},
    }


def _panels(study: RanksByFamily) -> dict[str, list[str]]:
    """Families that stand side by side: of one stack, cross-attention apart."""
    panels: dict[str, list[str]] = {}
    for name in study.families:
        stack, _, family = name.rpartition(".")
        title = ", ".join(filter(None, (stack, "cross-attention" if family.startswith("cross_") else "")))
        panels.setdefault(f" ({title})" if title else "", []).append(name)
    return panels


def _by_layer(study: RanksByFamily, names: list[str]) -> list[dict[str, Any]]:
    families = {name.rpartition(".")[2]: study.families[name].ranks for name in names}
    return [
        {"layer": layer, **dict(zip(families, map(_rounded, ranks), strict=True))}
        for layer, ranks in enumerate(zip_longest(*families.values()))
    ]


def _rounded(rank: float | None) -> str:
    return "" if rank is None else f"{rank:{DIGITS}.1f}"
