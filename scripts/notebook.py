"""Write docs/guide/atlas.ipynb with its outputs: python -m scripts.notebook --atlas .demo/atlas.

The cells are in this file; they run in a new kernel in a folder where the atlas is called "atlas".
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from scripts.child import PROJECT

OUT = PROJECT / "docs" / "guide" / "atlas.ipynb"
SECONDS = 600  # for one cell
CELLS = (
    """# An atlas of fine-tuned models, from Python

Every question of the command line is a method of `Atlas`, with the same names and defaults. A notebook displays the
answers, which also give data frames (`to_df()`), rows (`to_rows()`), JSON (`to_dict()`) and pictures (`figure()`,
`write("map.png")`).

This atlas holds small trained models. `make demo` makes such an atlas, and `make notebook` makes this notebook.""",
    """>>> from query import Atlas, AtlasError
%matplotlib inline
%config InlineBackend.print_figure_kwargs = {"dpi": 80}

atlas = Atlas("atlas")
atlas""",
    """## What is in it

Plain SQL over tables and views. Timestamps and lists keep their types.""",
    """>>> models = atlas.sql(
    "SELECT model, author, relation, datasets, downloads, created FROM models "
    "WHERE NOT is_copy AND NOT is_unrelated ORDER BY model"
).to_df()
print(models.dtypes)
models.head()""",
    """## Which models are like this one?""",
    """>>> model = models[models.datasets.str.len() > 0].model.iloc[0]
near = atlas.similar(model, k=5, other_authors=True)
near""",
    """The answer is a list of neighbours with named fields:""",
    """>>> [(one.model, round(one.similarity, 2), one.datasets) for one in near[:2]]""",
    """## The vectors themselves

The rows are in the order of `models`. If two models changed different matrices, the cosine of their rows is not their
similarity; `similarity()` computes what `similar` shows.""",
    """>>> vectors = atlas.vectors()
print(vectors.matrix.shape, vectors.blocks)
vectors.similarity([model]).round(2)[0, :5], vectors.models[:5]""",
    """## Do models tuned on the same data lie together?""",
    """>>> purity = atlas.purity()
purity""",
    """## Which groups are there?""",
    """>>> groups = atlas.clusters()
groups.to_df("cluster")[["cluster", "size", "probably", "share", "authors"]]""",
    """## A map""",
    """>>> atlas.map(method="pca").figure()""",
    """## What was this undocumented model probably tuned on?""",
    """>>> undocumented = models[models.datasets.str.len() == 0].model
atlas.predict(undocumented.iloc[0] if len(undocumented) else model)""",
    """How often that is right: each model is predicted from models by other authors.""",
    """>>> judged = atlas.evaluate_prediction()
print(judged.headline)
judged.to_df()[["model", "datasets", "answer", "probability", "right"]].head()""",
    """## How does the rank of the change move with depth?

This needs all singular values (`build(base, spectra=True)`). Without them, an `AtlasError` says what is wrong and what
to do.""",
    """>>> try:
    study = atlas.rank()
except AtlasError as error:
    print(error)
else:
    print(study.headline)
    display(study.figure())""",
    """## One page with all of it

`atlas.report().write("report.html")` writes a page that needs no network. The atlas itself can also be built from
Python:

```python
from indexer import build

report = build("roberta-base", "atlas", limit=50, progress=print)
```""",
)


def notebook() -> Any:
    """The notebook without outputs; a cell of code begins with ``>>> ``."""
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

    cells = [
        new_code_cell(text.removeprefix(">>> "), id=f"cell-{place}")
        if text.startswith(">>> ")
        else new_markdown_cell(text, id=f"cell-{place}")
        for place, text in enumerate(CELLS)
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})


def executed(atlas: Path) -> Any:
    """The notebook, run next to ``atlas``. Raises nbclient's CellExecutionError if a cell fails."""
    from nbclient import NotebookClient

    made = notebook()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "atlas").symlink_to(atlas.resolve(), target_is_directory=True)
        client = NotebookClient(
            made, timeout=SECONDS, startup_timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": folder}},
            record_timing=False,
        )  # fmt: skip
        client.execute()
    made.metadata.pop("widgets", None)
    made.metadata["language_info"] = {"name": "python"}  # no version of this machine
    for cell in made.cells:  # warnings of libraries
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    return made


def main() -> None:
    """Run it and write it."""
    import nbformat

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--atlas", type=Path, default=Path(".demo/atlas"), help="The atlas to ask.")
    parser.add_argument("--out", type=Path, default=OUT, help="Where the notebook goes.")
    options = parser.parse_args()
    nbformat.write(executed(options.atlas), options.out)
    print(f"wrote {options.out} from {options.atlas}")


if __name__ == "__main__":
    main()
