"""The command `index`: each command parses its options and calls the library."""

from __future__ import annotations

import click

from indexer.cli.building import BUILDING
from indexer.cli.scanning import SCANNING
from indexer.cli.upkeep import UPKEEP
from indexer.console.terminal import AtlasGroup, handle_sigterm

__all__ = ["main"]

# Shown at the end of each command's --help.
EXAMPLES = {
    "build": (
        "index build --base roberta-base --limit 50\n"
        "index build --base roberta-base --from /data/runs\n"
        "index build --from ~/ComfyUI/models/loras --from hf-cache\n"
        "index build --from s3://team/checkpoints"
    ),
    "work": "index work --base roberta-base --shard 3/16",
    "publish": "index publish --base roberta-base",
    "add": "index add ./my-fine-tune 'runs/*/final' lora.safetensors --author me",
    "scan": (
        "index scan ~/runs hf-cache --html page.html\n"
        "index scan models --base roberta-base --fail-on unrelated,broken,duplicate"
    ),
    "deepen": 'index deepen --base roberta-base --where "downloads > 1000"',
    "starts": "index starts --base gpt2",
    "remove": "index remove textattack/roberta-base-MNLI",
    "profile": "index profile --base roberta-base --limit 10 --with-untrained",
    "status": "index status --json",
    "doctor": "index doctor --json",
    "listing": "index listing --base roberta-base --format jsonl",
    "verify": "index verify --strict",
    "rebuild": "index rebuild",
    "prune": "index prune --dry-run",
    "represent": "index represent output",
    "push": "index push me/roberta-atlas --tag v1",
    "pull": "index pull someone/roberta-atlas --atlas their-atlas",
    "merge": "index merge atlas-a atlas-b --atlas both",
}


@click.group(cls=AtlasGroup, examples=EXAMPLES)
def main() -> None:
    """Build an atlas of fine-tuned models: crawl, read, vectorise, publish."""
    handle_sigterm()


for command in (*BUILDING, *SCANNING, *UPKEEP):
    main.add_command(command)
