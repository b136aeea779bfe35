"""Write docs/reference/architectures.md; with ``--build`` build every model type first, and write docs/reference/architectures.json."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import click
import transformers

from indexer.checkpoints.architectures.architecture import known_model_types, load_architecture
from indexer.errors import Skipped
from indexer.names import STACKS
from scripts.child import PROJECT
from scripts.model_types.sweep import sweep, unfolded
from scripts.tables import markdown

STORED = PROJECT / "docs" / "reference" / "architectures.json"
PAGE = PROJECT / "docs" / "reference" / "architectures.md"
_EXAMPLES = 3


@dataclass(frozen=True)
class Verdict:
    """What the data files make of a model type.

    ``found`` of ``numbered`` matrices in numbered layers are located; ``passed_over`` are modules of the others.
    ``adapters``: whether the modules in memory, which adapters name, lead to the same matrices. ``reason``: why nothing
    is located; empty if something is.
    """

    model_type: str
    reason: str = ""
    architecture: str = ""
    stacks: tuple[str, ...] = ()
    found: int = 0
    numbered: int = 0
    passed_over: tuple[str, ...] = ()
    adapters: bool = True

    @property
    def is_located(self) -> bool:
        """Whether a checkpoint of this type can be indexed."""
        return not self.reason


def judge(model_type: str, entry: Mapping[str, Any]) -> Verdict:
    """One entry of the sweep against the data files."""
    if "reason" in entry:
        return Verdict(model_type, f"it was not built: {entry['reason']}")
    shapes = unfolded(entry["matrices"])
    if not shapes:
        return Verdict(model_type, "it has no matrices in numbered layers (convolutions only, or shared layers)")
    try:
        architecture = load_architecture(model_type)
        layout = architecture.locate(shapes, entry.get("config", {}))
    except Skipped as reason:
        return Verdict(model_type, reason.detail, numbered=len(shapes))
    left = sorted(set(shapes) - set(layout.tensors))
    modules: dict[str, None] = {}
    for name in left:
        modules[".".join(part for part in name.removesuffix(".weight").split(".") if not part.isdigit())] = None
    try:
        live = [name.removesuffix(".weight") for name in unfolded(entry.get("modules", entry["matrices"]))]
        named = {matrix.key for held in architecture.locate_modules(live, layout).values() for matrix in held}
        # Experts are parameters in memory, which adapters name in another way, or not at all.
        adapters = {key for key in layout.by_key if not key.family.startswith("expert_")} <= named
    except Skipped:
        adapters = False
    return Verdict(
        model_type, "", layout.architecture, tuple(sorted(layout.depth, key=STACKS.index)), len(layout.tensors), len(shapes),
        tuple(modules), adapters,
    )  # fmt: skip


def page(entries: Mapping[str, Mapping[str, Any]], version: str) -> str:
    """The document: the number, the located types, and the others with the reason."""
    verdicts = [judge(model_type, entry) for model_type, entry in sorted(entries.items())]
    located = [one for one in verdicts if one.is_located]
    others = [one for one in verdicts if not one.is_located]
    whole = sum(not one.passed_over for one in located)
    adapters = sum(one.adapters for one in located)
    built = sum("reason" not in entry for entry in entries.values())
    # Classes of diffusers, which begin with a capital, are in docs/guide/adapters.md.
    elsewhere = [f"`{one}`" for one in known_model_types() if one not in entries and not one[0].isupper()]
    lines = [
        "# Model types",
        "",
        f"transformers {version} has {len(verdicts)} model types. {built} of them were built with few layers and saved by",
        f"`save_pretrained`. For {len(located)} of these, the matrices of all layers of the network, or of its main part, are",
        f"located: for {whole} of them every matrix in a numbered layer, for the others all but those that the table names",
        "(towers for images and sound of language models, heads, small tables, all experts but the first). For",
        f"{adapters} of the {len(located)}, the module names in memory, which adapters use, lead to the same matrices.",
        "",
        "`python -m scripts.model_types` writes this page from `docs/reference/architectures.json`; with `--build` it first builds",
        "every type again, which takes a quarter of an hour.",
        "",
        "Towers for images or sound of models that write text are not read. Fine-tunes mostly leave them frozen, and a",
        "file without the tower can still be compared with one that has it. In CLIP, SigLIP and their relatives both",
        "towers are stacks, `text` and `vision`; a network in stages has the stacks `stage1` to `stage4`.",
        "",
        *wrap(f"The following types with their own code are located as well: {', '.join(elsewhere)}.", 120),
        "",
    ]
    rows = [["model type", "data file", "stacks", "located / numbered", "adapters", "passed over"]]
    for one in located:
        some = ", ".join(f"`{name}`" for name in one.passed_over[:_EXAMPLES])
        more = f" and {len(one.passed_over) - _EXAMPLES} more" if len(one.passed_over) > _EXAMPLES else ""
        stacks = ", ".join(name or "–" for name in one.stacks)
        mark = "yes" if one.adapters else "no"
        place = f"{one.found} / {one.numbered}"
        rows.append([f"`{one.model_type}`", f"{one.architecture}.toml", stacks, place, mark, f"{some}{more}"])
    lines += [markdown(rows), "", "## Not located", ""]
    counts = Counter(_kind(one.reason) for one in others)
    lines += [f"- {count}: {kind}" for kind, count in counts.most_common()]
    reasons = [[f"`{one.model_type}`", one.reason.replace("|", "/")] for one in others]
    lines += ["", markdown([["model type", "why"], *reasons])]
    return "\n".join(lines) + "\n"


def _kind(reason: str) -> str:
    for start, kind in (
        ("it was not built: it is the config of a part", "the config of a part, with which no model is saved"),
        ("it was not built", "not built here: a package is missing, or the config has no usable defaults"),
        ("it has no matrices", "no matrices in numbered layers"),
        ("model type", "no data file: layers of several kinds, experts, or a family that few people fine-tune"),
    ):
        if reason.startswith(start):
            return kind
    return "a data file that does not fit"


@click.command(help=__doc__)
@click.option("--build", is_flag=True, help="Build the types again, a quarter of an hour.")
@click.argument("chosen", nargs=-1)
def main(build: bool, chosen: tuple[str, ...]) -> None:
    """``chosen``: model types to build again; by default all."""
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {"model types": {}}
    if build or chosen:
        stored["transformers"] = transformers.__version__
        found = sweep(chosen)
        stored["model types"] = stored["model types"] | found if chosen else found
        STORED.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(page(stored["model types"], stored["transformers"]), encoding="utf-8")


if __name__ == "__main__":
    main()
