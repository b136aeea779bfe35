"""The picture at the top of the README: every model of the demo as a point, near where its vector is near."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from query import Atlas
from query.population import read_population

# Okabe & Ito's palette: told apart with any kind of colour vision.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#000000")


def draw_map(atlas_folder: Path, base: str, out: Path) -> Path:
    """Place the vectors of one base in the plane by t-SNE on cosine distance, coloured by dataset."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from sklearn.manifold import TSNE

    with Atlas(atlas_folder) as atlas:
        models = read_population(atlas, base)
    names = [min(datasets) if datasets else None for datasets in models.datasets]
    counts: dict[str, int] = {}
    for name in names:
        if name:
            counts[name] = counts.get(name, 0) + 1
    shown = sorted(counts, key=lambda name: (-counts[name], name))[: len(COLOURS)]
    distances = np.clip(1.0 - models.vectors @ models.vectors.T, 0.0, 2.0)
    np.fill_diagonal(distances, 0.0)
    places = TSNE(
        metric="precomputed", init="random", perplexity=min(8.0, (len(names) - 1) / 3), random_state=0
    ).fit_transform(distances)

    figure, axes = plt.subplots(figsize=(9, 5.2), dpi=150, layout="constrained")
    for position, name in enumerate(names):
        is_adapter = models.relations[position] == "adapter"
        colour = COLOURS[shown.index(name)] if name in shown else "#BBBBBB"
        axes.scatter(
            *places[position],
            s=70,
            c=[colour],
            marker="^" if is_adapter else "o",
            edgecolors="white",
            linewidths=0.8,
        )
    for index, name in enumerate(shown):
        axes.scatter([], [], c=COLOURS[index], s=50, label=f"{name} ({counts[name]})")
    axes.scatter([], [], c="#BBBBBB", s=50, label="no dataset named, or another")
    axes.scatter([], [], c="#777777", s=50, marker="^", label="LoRA adapter")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_color("#DDDDDD")
    axes.set_title(f"{len(names)} fine-tunes of {base}, by what training did to their weights", fontsize=10, loc="left")
    figure.savefig(out)
    plt.close(figure)
    return out
