"""The dataset card of a pushed atlas: YAML that makes it findable and readable, and instructions for use.

Nothing in it comes from a model's card: untrusted text stays in the tables.
"""

from __future__ import annotations

from collections.abc import Collection

import yaml

from indexer.share.manifest import Manifest
from indexer.share.staging import EXPORTS
from indexer.sources.registry import page_of
from indexer.version import __version__

# By this tag atlases are found: HfApi().list_datasets(filter=TAG).
TAG = "vectors-in-the-wild"
_LICENCE = "cc-by-4.0"
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
_HOME = "https://pypi.org/project/vectors-in-the-wild"


def card(name: str, manifest: Manifest, paths: Collection[str], *, records_bytes: int, skipped: int) -> bytes:
    """README.md of an atlas pushed as ``name`` with files at ``paths``."""
    bases = [str(row["base"]) for row in manifest.bases]
    models = manifest.counts.get("models", 0)
    names = ", ".join(base.rpartition("/")[2] for base in bases[:3]) + (" …" if len(bases) > 3 else "")
    title = f"Atlas of fine-tunes of {names}" if bases else "Atlas of fine-tuned models"
    # One configuration per table, and one per base and representation for vectors, whose lengths differ.
    configs = {table: f"data/{table}.parquet" for table in EXPORTS if f"data/{table}.parquet" in paths}
    if any(path.startswith("data/deltas/") for path in paths):
        configs["deltas"] = "data/deltas/*.parquet"
    folders = sorted({path.split("/")[1] for path in paths if path.startswith("vectors/")})
    configs |= {f"vectors.{folder}": f"vectors/{folder}/*.parquet" for folder in folders}
    front = {
        "license": _LICENCE,
        "pretty_name": title,
        "tags": [
            TAG,
            "model-atlas",
            "weight-space-learning",
            *(f"base_model:{base}" for base in bases if page_of(base) is not None),
        ],
        "size_categories": [next((text for most, text in _SIZES if models < most), "n>1M")],
        "configs": [
            {"config_name": config, **({"default": True} if config == "models" else {}), "data_files": path}
            for config, path in configs.items()
        ],
        "atlas": {
            "models": models,
            "bases": [{"base": row["base"], "models": row["models"]} for row in manifest.bases],
            "generation": manifest.generation,
            "schema": manifest.schema,
        },
    }
    head = yaml.safe_dump(front, sort_keys=False, allow_unicode=False, width=1000)
    rows = "\n".join(f"| {_link(row['base'])} | `{row['commit']}` | {row['models']:,} |" for row in manifest.bases)
    vectors = "\n".join(
        f"| {_link(row['base'])} | `{row['representation']}` | {row['version']} | {row['rank']} | {row['vectors']:,} "
        f"| {row['length']:,} |"
        for row in manifest.representations
    )
    records = (
        f"The records it was made from are included ({records_bytes / 1e9:.2f} GB): fetch them with `index pull {name} "
        "--with-records` and continue with `index build --adopt`."
        if records_bytes
        else "The records it was made from are not included: it can be queried, but not built further."
    )
    tables = "\n".join(f"- `{config}`: `{path}`" for config, path in configs.items())
    return f"""---
{head}---

# {title}

{models:,} fine-tuned models, placed by what fine-tuning did to their weights: vectors of
δW = W_tuned − W_base, their neighbours, datasets, norms, ranks and flags. Made by
[vectors-in-the-wild]({_HOME}) {__version__}; generation {manifest.generation} of {manifest.published or "unknown"}.

| base | commit | models |
|---|---|---|
{rows}

{skipped:,} more were listed and could not be read; the table `failures` gives the reasons.

## Use

```bash
pip install vectors-in-the-wild
query similar OWNER/MODEL --atlas hf://{name}    # fetched once, then read from the cache
index pull {name} --atlas atlas                  # or as a folder of your own
```

Without this program:

```sql
-- DuckDB
FROM 'hf://datasets/{name}/data/models.parquet';
```
```python
import pandas
pandas.read_parquet("hf://datasets/{name}/data/models.parquet")

import datasets
datasets.load_dataset("{name}", "neighbours")
```

Tables:

{tables}

Vectors (`vectors/`, and as FAISS files next to `atlas.duckdb`):

| base | representation | version | rank | vectors | numbers each |
|---|---|---|---|---|---|
{vectors}

`atlas.json` names every file with its sha256. {records}

## Licence

The numbers here are under {_LICENCE.upper()}. Each model keeps its own licence (column `licence` of `models`), and the
text of its card is its author's. Names and descriptions are as their authors wrote them.
""".encode()


def _link(base: object) -> str:
    """A base's id in Markdown: a link, or code if it is not an id on the Hub."""
    text = str(base)
    page = page_of(text)
    return f"`{text.replace('`', '')[:100]}`" if page is None else f"[{text}]({page})"
