"""`python -m scripts.depth`: trains the small models and makes every number of the seeds' experiments again."""

from __future__ import annotations

import argparse
from pathlib import Path

from scripts.depth.models import make_gpt2, make_mixer, make_vit
from scripts.depth.study import run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.depth", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(".demo/depth"), help="where the models and numbers go")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a tokenizer.json, e.g. the demo base's")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    for name, told in (
        ("ViT", make_vit(out / "tiny-vit")),
        ("GPT-2", make_gpt2(out / "tiny-gpt2", arguments.tokenizer)),
        ("mixer", make_mixer(out / "tiny-mixer")),
    ):
        print(name, told)
    run(out, out / "numbers")


if __name__ == "__main__":
    main()
