"""The command `query`: each command parses its options and asks the library."""

from __future__ import annotations

import click

from indexer.console.terminal import AtlasGroup
from query.cli.atlas import ATLAS
from query.cli.bases import BASES
from query.cli.models import MODELS
from query.cli.running import RUNNING

__all__ = ["main"]

# Shown at the end of each command's --help.
EXAMPLES = {
    "similar": "query similar textattack/roberta-base-MNLI -k 5 --other-authors",
    "ask": "query ask texts.jsonl --field body --base roberta-base",
    "purity": "query purity --base roberta-base --by model",
    "show": "query show textattack/roberta-base-MNLI",
    "trace": "query trace ./my-fine-tune --text articles.txt",
    "schema": "query schema models",
    "help": "query help background",
    "sql": 'query sql "SELECT model, downloads FROM models LIMIT 10"',
    "browse": "query browse --base roberta-base",
    "serve": "query serve --atlas ./atlas",
    "lineage": "query lineage --all --base roberta-base --out tree.svg",
    "clusters": "query clusters --base roberta-base --method kmeans --count 20",
    "map": "query map --base roberta-base --out map.html",
    "rank": "query rank --base roberta-base --threshold 0.8 --out rank.png",
    "predict": "query predict --undocumented --base roberta-base --store",
    "export": "query export --base roberta-base --out vectors.parquet",
    "report": "query report --base roberta-base --out report.html",
    "models": "query models mnli --dataset glue/mnli",
    "datasets": "query datasets glue",
    "layers": "query layers ./my-fine-tune --out layers.png",
    "compare": "query compare textattack/roberta-base-MNLI ./my-fine-tune",
    "depth": "query depth textattack/roberta-base-MNLI --out depth.png",
    "invert": 'query invert gpt2 "The sun is out." --layers 1,6,12',
    "features": "query features google/vit-base-patch16-224 --out features.png",
}


@click.group(cls=AtlasGroup, examples=EXAMPLES)
def main() -> None:
    """Ask an atlas of fine-tuned models."""


for command in (*MODELS, *RUNNING, *BASES, *ATLAS):
    main.add_command(command)
