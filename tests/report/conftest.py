"""The atlas that the report's tests are about, its report and that of a hostile one, made once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from query import Atlas
from tests.atlas_builder import DELTAS, Model, family, write_atlas
from tests.report_reader import Page

SECTIONS = ["map", "crawl", "names", "purity", "clusters", "prediction", "trace", "rank", "depth", "duplicates", "lineage", "pairs",
            "claims", "method", "models", "words"]  # fmt: skip


def skipped(name: str, reason: str, detail: str = "because") -> Model:
    return Model(name, status="skipped", reason=reason, detail=detail)


def population() -> list[Model]:
    """Three tight groups, and one of everything that a report speaks of."""
    models = family(each=7, tightness=0.9)
    # Ranks that rise by one a layer for queries and stay for values: their laws are known.
    ranks = tuple(2 + number // 2 if name.endswith("query") else 5 for number, name in enumerate(DELTAS))
    models = [replace(model, ranks=ranks) for model in models]
    models[6] = replace(models[6], datasets=("data/set0", "data/set0"), raw=("Data/SET0", "data/set0"))  # tag and card
    models[3] = replace(models[3], datasets=("data/set0", "data/extra"))
    silent = replace(
        models[0], model="zoe/silent", datasets=(), vector=models[0].vector + models[2].vector, downloads=999
    )
    adapter = replace(models[7], model="eve/lora", relation="adapter", vector=models[7].vector + models[8].vector,
                      base_cosine=None, ranks=ranks[:3] + (0,) * (len(DELTAS) - 3))  # fmt: skip
    again = replace(models[14], model="kim/again", author="kim", duplicate_of=15, datasets=("data/other",))
    stranger = replace(models[5], model="kim/stranger", is_unrelated=True, base_cosine=-0.0123, downloads=7)
    copies = [Model(f"kim/copy{n}", is_copy=True, ranks=(0,) * len(DELTAS), base_cosine=1.0) for n in range(2)]
    lost = [
        skipped("kim/gguf", "unreadable_format", "only as GGUF"),
        skipped("kim/flax", "unreadable_format", "only as flax"),
        skipped("kim/odd", "a_reason_of_tomorrow"),
        Model("kim/later", status="listed"),
        Model("kim/slow", status="failed", reason="timeout", detail="no answer"),
    ]
    return [*models, silent, adapter, again, stranger, *copies, *lost]


def indexed(models) -> list[Model]:
    return [model for model in models if model.status == "indexed"]


BUILDS = [
    dict(discovered=9, indexed=7, unchanged=0, skipped=2, failed=0, bytes_read=7_000_000, bytes_total=9, seconds=7200.0),
    dict(discovered=9, indexed=0, unchanged=7, skipped=2, failed=0, bytes_read=0, bytes_total=0, seconds=30.0),
]  # fmt: skip


EVIL = (
    "<script>window.pwned=1</script>", "</style><b id=planted>", '" onmouseover="pwned()', "' onload='pwned()",
    "x\u202egnp.exe", "\x1b[31mred\x07", "&lt;i&gt;", "$\\frac{1}{0}$", "</svg><image href=x>", "{{light.ink}}{name}%s",
    "javascript:alert(1)//", "a\u2028b\u200bc\ufeff", "]]><!--", "x" * 5000, "",
)  # fmt: skip


def hostile_models() -> list[Model]:
    models = []
    for number, model in enumerate(family(each=5, tightness=0.9)):
        evil = EVIL[number]
        models.append(
            replace(
                model,
                model=f"{evil}/{number}{evil}",
                author=evil,
                datasets=(f"{number // 5}{EVIL[number // 5]}", evil),
                raw=(EVIL[-3], evil),
                claimed_by=f"alias:{evil}",
                head=(f"For{evil}", 2),
                relation="adapter" if number == 3 else "finetune",
            )
        )
    flags = (
        dict(is_copy=True, vector=None),
        dict(is_unrelated=True),
        dict(duplicate_of=3),
        dict(datasets=(), raw=None),
    )
    for number, flag in enumerate(flags):
        models += [replace(models[row], model=f"{number}{evil}", **flag) for row, evil in enumerate(EVIL[:9])]
    models += [skipped(f"0{evil}", f"{number}{evil}"[:60], evil) for number, evil in enumerate(EVIL)]
    return models


HOSTILE_BASE = "o'rg/<script>\"`$(x)`\u202e"


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return write_atlas(tmp_path_factory.mktemp("paper"), population(), representations=("input", "seed"), builds=BUILDS)


@pytest.fixture(scope="session")
def report(folder):
    with Atlas(folder) as atlas:
        return atlas.report()


@pytest.fixture(scope="session")
def page(report):
    return Page(report.html)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    folder = write_atlas(
        tmp_path_factory.mktemp("hostile"), hostile_models(), base=HOSTILE_BASE,
        builds=[dict(outcome=EVIL[0], versions='{"<b>": "</style>"}')],
    )  # fmt: skip
    with Atlas(folder) as atlas:
        return folder, atlas.report()
