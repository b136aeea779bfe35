"""One example for each command, shown by its --help."""

from __future__ import annotations

EXAMPLES = {
    "build": "index build --base roberta-base --limit 50",
    "work": "index work --base roberta-base --shard 3/16",
    "publish": "index publish --base roberta-base",
    "add": "index add ./my-fine-tune --base roberta-base --name me/my-fine-tune",
    "remove": "index remove textattack/roberta-base-MNLI",
    "profile": "index profile --base roberta-base --limit 10 --with-untrained",
    "status": "index status --json",
    "verify": "index verify --strict",
    "rebuild": "index rebuild",
    "represent": "index represent output",
    "push": "index push me/roberta-atlas --tag v1",
    "pull": "index pull someone/roberta-atlas --atlas their-atlas",
    "merge": "index merge atlas-a atlas-b --atlas both",
}
