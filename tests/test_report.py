"""The report, read as a stranger would, against numbers counted and computed here once more."""

from __future__ import annotations

import itertools
import re
import shlex
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from indexer.errors import AtlasError
from query import Atlas
from query.figures import new_figure
from query.reporting import purity as purity_section
from query.reporting import wording
from query.reporting.markup import element, joined, model
from query.reporting.pictures import add_picture
from query.reporting.reasons import REASONS
from query.reporting.section import Writer
from tests.browser import Browser, missing_browser
from tests.conftest import ROOT, Shell
from tests.paper_atlas import BASE, DELTAS, Paper, author_of, family, vectors_of, write_atlas
from tests.report_reader import Page

SECTIONS = ["words", "crawl", "names", "purity", "map", "clusters", "prediction", "rank", "duplicates", "pairs",
            "claims", "method"]  # fmt: skip
HEAD = ("RobertaForSequenceClassification", 2)


def skipped(name: str, reason: str, detail: str = "because") -> Paper:
    return Paper(name, status="skipped", reason=reason, detail=detail)


def population() -> list[Paper]:
    """Three tight groups, and one of everything that a report speaks of."""
    models = family(each=7, tightness=0.9)
    # Ranks that rise by one a layer for queries and stay for values: their laws are known.
    ranks = tuple(2 + number // 2 if name.endswith("query") else 5 for number, name in enumerate(DELTAS))
    models = [replace(one, ranks=ranks) for one in models]
    models[6] = replace(models[6], datasets=("data/set0", "data/set0"), raw=("Data/SET0", "data/set0"))  # tag and card
    models[3] = replace(models[3], datasets=("data/set0", "data/extra"))
    silent = replace(
        models[0], model="zoe/silent", datasets=(), vector=models[0].vector + models[2].vector, downloads=999
    )
    adapter = replace(models[7], model="eve/lora", relation="adapter", vector=models[7].vector + models[8].vector,
                      base_cosine=None, ranks=ranks[:3] + (0,) * (len(DELTAS) - 3))  # fmt: skip
    again = replace(models[14], model="kim/again", author="kim", duplicate_of=14, datasets=("data/other",))
    stranger = replace(models[5], model="kim/stranger", is_unrelated=True, base_cosine=-0.0123, downloads=7)
    copies = [Paper(f"kim/copy{n}", is_copy=True, ranks=(0,) * len(DELTAS), base_cosine=1.0) for n in range(2)]
    lost = [
        skipped("kim/gguf", "unreadable_format", "only as GGUF"),
        skipped("kim/flax", "unreadable_format", "only as flax"),
        skipped("kim/odd", "a_reason_of_tomorrow"),
        Paper("kim/later", status="listed"),
        Paper("kim/slow", status="failed", reason="timeout", detail="no answer"),
    ]
    return [*models, silent, adapter, again, stranger, *copies, *lost]


def indexed(models) -> list[Paper]:
    return [one for one in models if one.status == "indexed"]


BUILDS = [
    dict(discovered=9, indexed=7, unchanged=0, skipped=2, failed=0, bytes_read=7_000_000, bytes_total=9, seconds=7200.0),
    dict(discovered=9, indexed=0, unchanged=7, skipped=2, failed=0, bytes_read=0, bytes_total=0, seconds=30.0),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_atlas(tmp_path_factory.mktemp("paper"), population(), representations=("input", "seed"), builds=BUILDS)


@pytest.fixture(scope="module")
def report(folder):
    with Atlas(folder) as atlas:
        return atlas.report()


@pytest.fixture(scope="module")
def page(report):
    return Page(report.html)


# ---- the page as a page


def test_every_section_is_there_in_order_and_reachable(report, page):
    assert list(report.sections) == SECTIONS
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert [one for one in ids if one in SECTIONS] == SECTIONS
    links = [attributes["href"] for attributes in page.attributes("a")]
    assert {link[1:] for link in links if link.startswith("#")} == set(SECTIONS) - {"words", "method"} | set(SECTIONS)
    numbered = [text for tag, text in page.headings if tag == "h2"][2:]
    assert [text.split()[0] for text in numbered] == [str(number) for number in range(1, 13)]


def test_markup_says_what_things_are(report, page):
    assert report.html.startswith('<!doctype html>\n<html lang="en">')
    levels = [int(tag[1]) for tag, _ in page.headings]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert len(page.tables) >= 15
    for table in page.tables:
        assert table.caption
        assert table.scopes == ["col"] * len(table.head) + ["row"] * len(table.rows)
        assert all(len(row) == len(table.head) for row in table.rows)
    assert len({table.caption for table in page.tables}) == len(page.tables)
    assert all(len(attributes["alt"]) > 40 for attributes in page.attributes("img"))


def test_nothing_is_fetched_or_run(page):
    assert not {"script", "link", "iframe", "object", "form", "base"} & {name for name, _ in page.elements}
    policy = [one["content"] for one in page.attributes("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    assert policy[0].startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'")
    for attributes in page.attributes("a"):
        if not attributes["href"].startswith("#"):
            assert re.fullmatch(r"https://huggingface\.co/[\w.-]+/[\w.-]+", attributes["href"])
            assert set(attributes["rel"].split()) == {"noopener", "nofollow"}
    for attributes in page.attributes("source"):
        assert attributes["media"] == "screen and (prefers-color-scheme: dark)"
    assert {kind for kind, _ in page.pictures()} == {"image/svg+xml"}
    assert len(page.pictures()) == 2 * len(page.attributes("img")) == 2 * 4


def test_the_same_atlas_and_seed_give_the_same_page(tmp_path):
    folder = write_atlas(tmp_path, family()[:5], builds=BUILDS)  # too few for UMAP, whose import takes long
    with Atlas(folder) as atlas, Atlas(folder) as again:
        html = atlas.report(BASE, seed=3).html
        assert again.report(seed=3).html == html
    assert "placed by PCA" in Page(html).text
    assert "seed 3." in Page(html).text


# ---- numbers, counted again


def test_what_became_of_the_models(page):
    models = population()
    table = page.table("What became of the models found").by_first()
    counts = Counter(one.status for one in models)
    assert {status: int(row["models"]) for status, row in table.items()} == counts
    assert table["indexed"]["share"] == f"{100 * counts['indexed'] / len(models):.0f}\u00a0%"
    assert page.key_numbers[f"models found that claim {BASE}"] == str(len(models))
    origins = page.table("How they say they were made").by_first()
    assert {name: (int(row["found"]), int(row["indexed"])) for name, row in origins.items()} == {
        "finetune": (len(models) - 1, counts["indexed"] - 1), "adapter": (1, 1),
    }  # fmt: skip
    assert origins["adapter"]["claimed by"] == "the Hub's base_model tag (1)"


def test_every_reason_is_told_in_plain_words_with_an_example(page):
    table = page.table("Skipped and failed models by reason").by_first()
    reasons = Counter(one.reason for one in population() if one.reason)
    assert {reason: int(row["models"]) for reason, row in table.items()} == reasons
    assert table["unreadable_format"]["in plain words"] == REASONS["unreadable_format"]
    assert table["unreadable_format"]["an example"] == "kim/flax"
    assert table["unreadable_format"]["what was met there"] == "only as flax"
    assert table["timeout"]["status"] == "failed"
    assert "No explanation" in table["a_reason_of_tomorrow"]["in plain words"]


def test_every_reason_of_the_indexer_is_explained():
    """Codes as they stand in its source, whoever adds one."""
    source = "\n".join(file.read_text() for file in sorted((ROOT / "indexer").rglob("*.py")))
    found = set(re.findall(r'(?:Skipped|Failed)\(\s*"([a-z_]+)"', source))
    found |= set(re.findall(r'(?:Skipped|Failed), "([a-z_]+)"', source))
    found |= set(re.findall(r'_failed\("([a-z_]+)"', source))
    assert len(found) > 20
    assert found <= set(REASONS)


def test_what_was_read_and_when(page):
    models = indexed(population())
    said = page.said("crawl")
    assert f"For the {len(models)} indexed models {len(models)}.0\u00a0kB of the {5 * len(models)}" in said
    assert "on 1 March 2026" in said
    assert "generation 3, published on 1 March 2026 by vectors-in-the-wild 0.1.0" in said
    assert "c" * 40 in page.codes
    assert "numpy 2.4.6" in said
    builds = page.table("Builds")
    assert builds.column("read") == ["0\u00a0bytes", "7.0\u00a0MB"]  # the latest first
    assert builds.column("took") == ["30\u00a0s", "2.0\u00a0h"]
    assert builds.column("unchanged") == ["7", "0"]


def test_datasets_with_spellings_merged_and_the_share_of_the_largest_author(page):
    models = indexed(population())
    table = page.table("Datasets by number of models").by_first()
    counts = Counter(name for one in models for name in set(one.datasets))
    assert {name: int(row["models"]) for name, row in table.items()} == counts
    for name, row in table.items():
        authors = Counter(author_of(one) for one in models if name in one.datasets)
        assert int(row["authors"]) == len(authors)
        assert row["share of its largest author"] == wording.percent(max(authors.values()) / counts[name])
    assert table["data/set0"]["as spelt"] == "Data/SET0, data/set0"
    assert list(table) == sorted(counts, key=lambda name: (-counts[name], name))
    documented = sum(bool(one.datasets) for one in models)
    assert f"{documented} indexed models name a dataset" in page.said("names")
    assert "4 datasets in 6 spellings" not in page.said("names")
    assert f"together they name {len(counts)} datasets in {len(counts) + 1} spellings" in page.said("names")


def test_authors(page):
    models = indexed(population())
    counts = Counter(author_of(one) for one in models)
    table = page.table("Authors by number of models").by_first()
    assert {name: int(row["models"]) for name, row in table.items()} == counts
    downloads = Counter()
    for one in models:
        downloads[author_of(one)] += one.downloads
    assert {name: int(row["downloads"].replace(",", "")) for name, row in table.items()} == downloads
    largest = wording.percent(max(counts.values()) / len(models))
    assert page.key_numbers[f"authors; the largest uploaded {largest} of the models"] == str(len(counts))


def brute_purity(models, representation, across):
    """DESIGN.md's definition, in plain loops: (purity, chance, number of scored models)."""
    ids, vectors = vectors_of(models, representation)
    united = {}
    for place, one in enumerate(models):
        leader = place if one.duplicate_of is None else one.duplicate_of
        if one.vector is not None and not one.is_unrelated:
            united.setdefault(leader, set()).update(one.datasets)
    places = [place for place in sorted(united) if united[place]]
    row = {int(identity) - 1: number for number, identity in enumerate(ids)}
    purities, chances = [], []
    for place in places:
        others = [
            other for other in places
            if other != place and not (across and author_of(models[other]) == author_of(models[place]))
        ]  # fmt: skip
        matching = [other for other in others if united[other] & united[place]]
        if not matching:
            continue
        vector = vectors[row[place]].astype(np.float64)
        near = sorted(others, key=lambda other: (-round(float(vectors[row[other]] @ vector), 9), other))[
            : len(matching)
        ]
        purities.append(np.mean([other in matching for other in near]))
        chances.append(len(matching) / len(others))
    return float(np.mean(purities)), float(np.mean(chances)), len(purities)


@pytest.mark.parametrize("representation", ["input", "seed"])
def test_purity_is_what_plain_loops_give(page, representation):
    row = page.table("Purity by representation").by_first()[representation]
    for across, suffix in ((False, ""), (True, ", cross-author")):
        purity, chance, scored = brute_purity(population(), representation, across)
        assert row[f"purity{suffix}"] == f"{purity:.2f}"
        assert row[f"chance{suffix}"] == f"{chance:.3f}"
        if not across:
            assert row["models"] == str(scored)
        low, high = map(float, row[f"95 % interval{suffix}"].split("–"))
        assert low <= purity + 0.005
        assert purity - 0.005 <= high
    if representation == "input":
        assert f"{wording.percent(brute_purity(population(), 'input', False)[0])} of a model's" in page.said("purity")


def test_clusters_are_the_planted_groups(page):
    table = page.table("Clusters, the largest first")
    # Each group of seven; the undocumented one is of the first, the adapter of the second.
    assert Counter(table.column("models")) == Counter({"8": 2, "7": 1})
    groups = dict(zip(table.column("datasets (models)"), table.column("undocumented members, probably"), strict=True))
    first = next(name for name in groups if "data/set0" in name)
    assert groups[first].startswith("1: data/set0 (")
    assert sum(value == "–" for value in groups.values()) == 2
    silent = page.table("Members that name no dataset")
    assert silent.column("model") == ["zoe/silent"]
    assert silent.column("probably") == ["data/set0"]
    agreement = page.table("Agreement beside its chance level")
    rows = [row for row in agreement.rows if row[:3] == ["clusters with datasets", "homogeneity", "those in a cluster"]]
    assert float(rows[0][3]) > 0.9
    assert "agree: ARI" in page.said("clusters")


def test_the_undocumented_model_gets_the_dataset_of_its_group(page):
    table = page.table("Probable datasets of undocumented models")
    assert table.column("model") == ["zoe/silent"]
    assert table.column("most probable dataset") == ["data/set0"]
    assert "1 model that was compared names no dataset" in page.said("prediction")


def test_prediction_is_told_beside_the_baselines(folder, page):
    with Atlas(folder) as atlas:
        evaluation = atlas.evaluate_prediction()
    # Its accuracy once more, from the single outcomes.
    right = np.average(
        [one.right > 0 for one in evaluation.outcomes], weights=[one.weight for one in evaluation.outcomes]
    )
    table = page.table("Predictions of documented models")
    assert table.rows[0][1] == wording.percent(float(right))
    told = [(row[1], *row[3:]) for row in table.rows]
    assert told == [
        (
            wording.percent(one.accuracy), wording.percent(one.top3), f"{one.brier:.2f}",
            f"{one.calibration_error:.2f}",
        )
        for one in evaluation.scores
    ]  # fmt: skip
    assert any(row[0] != row[1] for row in told)
    assert [row[0].partition(":")[0] for row in table.rows[-2:]] == ["baseline", "baseline"]


def test_rank_curves_follow_the_planted_laws(page):
    table = page.table("Rank of δW by family").by_first()
    assert table["query"]["equation"] == "rank ≈ 2 + 1·x"
    assert table["value"]["equation"] == "rank ≈ 5"
    counted = [
        one for one in indexed(population()) if not one.is_copy and not one.is_unrelated and one.duplicate_of is None
    ]
    for name in ("query", "value"):
        columns = [place for place, delta in enumerate(DELTAS) if delta.endswith(name)]
        for title, column in (("first layer", columns[0]), ("last layer", columns[-1])):
            ranks = [one.ranks[column] for one in counted if one.ranks[column]]
            assert table[name][title] == f"{np.mean(ranks):.1f}"
    assert table["query"]["models"] == str(len(counted))  # the adapter touches the first query
    (why,) = page.missing("rank")
    assert why.startswith("The weights W: ")
    assert why.endswith(f"index build --base {BASE} --spectra")


def test_copies_and_duplicates(page):
    assert page.table("2 copies of the base").column("model") == ["kim/copy0", "kim/copy1"]
    (row,) = page.table("1 duplicate").rows
    assert row[:3] == ["kim/again", population()[14].model, "another author"]
    assert page.key_numbers["copies of the base under another name"] == "2"
    assert page.key_numbers["duplicate of an earlier upload"] == "1"


def test_pairs_are_the_most_similar_ones_across_authors(folder, page):
    models = population()
    ids, vectors = vectors_of(models)
    usable = [
        n
        for n, identity in enumerate(ids)
        if models[identity - 1].duplicate_of is None and not models[identity - 1].is_unrelated
    ]
    pairs = [
        (float(vectors[a] @ vectors[b]), models[ids[a] - 1].model, models[ids[b] - 1].model)
        for a in usable for b in usable
        if a < b and author_of(models[ids[a] - 1]) != author_of(models[ids[b] - 1])
    ]  # fmt: skip
    best = sorted(pairs, reverse=True)
    table = page.table("The most similar pairs by different authors")
    shown = [(float(row[2]), frozenset(row[:2])) for row in table.rows]
    assert [similarity for similarity, _ in shown] == [round(similarity, 3) for similarity, *_ in best[:20]]
    assert {names for _, names in shown} == {frozenset(names) for _, *names in best[:20]}
    more, command = re.search(r"and ([\d,]+) more\. All: (query sql .*)", page.said("pairs")).groups()
    assert int(more.replace(",", "")) + 20 == len(best)
    with Atlas(folder) as atlas:
        assert len(atlas.sql(shlex.split(command)[-1]).rows) == len(best)


def test_suspicious_claims(page):
    (row,) = page.table("1 claim that the weights contradict").rows
    assert row == ["kim/stranger", "kim", "finetune", "the Hub's base_model tag", "−0.012", "7"]
    assert "Of 1 model the weights cannot say" in page.said("claims")


def test_the_ceiling_of_adapters_is_computed_from_their_matrices(page):
    share = sum(rank > 0 for rank in population()[22].ranks) / len(DELTAS)
    assert population()[22].relation == "adapter"
    assert f"(ceiling {np.sqrt(share):.2f})" in page.text
    assert any(code.startswith("pip install") and "index represent seed" in code for code in page.codes)


# ---- what comes from the Hub stays text

EVIL = (
    "<script>window.pwned=1</script>", "</style><b id=planted>", '" onmouseover="pwned()', "' onload='pwned()",
    "x\u202egnp.exe", "\x1b[31mred\x07", "&lt;i&gt;", "$\\frac{1}{0}$", "</svg><image href=x>", "{{light.ink}}{name}%s",
    "javascript:alert(1)//", "a\u2028b\u200bc\ufeff", "]]><!--", "x" * 5000, "",
)  # fmt: skip


def hostile_models() -> list[Paper]:
    models = []
    for place, one in enumerate(family(each=5, tightness=0.9)):
        evil = EVIL[place]
        models.append(
            replace(
                one,
                model=f"{evil}/{place}{evil}",
                author=evil,
                datasets=(f"{place // 5}{EVIL[place // 5]}", evil),
                raw=(EVIL[-3], evil),
                claimed_by=f"alias:{evil}",
                head=(f"For{evil}", 2),
                relation="adapter" if place == 3 else "finetune",
            )
        )
    flags = (
        dict(is_copy=True, vector=None),
        dict(is_unrelated=True),
        dict(duplicate_of=2),
        dict(datasets=(), raw=None),
    )
    for number, flag in enumerate(flags):
        models += [replace(models[place], model=f"{number}{evil}", **flag) for place, evil in enumerate(EVIL[:9])]
    models += [skipped(f"0{evil}", f"{number}{evil}"[:60], evil) for number, evil in enumerate(EVIL)]
    return models


HOSTILE_BASE = "o'rg/<script>\"`$(x)`\u202e"
TAGS = {
    "html", "head", "meta", "title", "style", "body", "header", "main", "footer", "nav", "section", "h1", "h2", "h3", "p",
    "ul", "ol", "li", "a", "code", "pre", "strong", "em", "span", "div", "dl", "dt", "dd", "table", "caption", "thead",
    "tbody", "tr", "th", "td", "figure", "figcaption", "picture", "source", "img",
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "id", "href", "rel", "scope", "tabindex", "src", "srcset",
    "media", "alt", "aria-labelledby",
}  # fmt: skip


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = write_atlas(
        tmp_path_factory.mktemp("hostile"), hostile_models(), base=HOSTILE_BASE,
        builds=[dict(outcome=EVIL[0], versions='{"<b>": "</style>"}')],
    )  # fmt: skip
    with Atlas(folder) as atlas:
        return folder, atlas.report()


def test_planted_markup_is_text(hostile):
    _, report = hostile
    page = Page(report.html)
    assert {name for name, _ in page.elements} <= TAGS
    assert {name for _, attributes in page.elements for name in attributes} <= ATTRIBUTES
    assert {text for text in report.html if not text.isprintable()} == {"\n", "\u00a0"}
    assert list(report.sections) == SECTIONS
    for evil in (EVIL[0], EVIL[1], EVIL[2], EVIL[6], EVIL[9]):
        assert evil in page.text
    assert "x\\u202egnp.exe" in page.text
    assert "\\x1b[31mred" in page.text
    assert {"purity", "clusters", "map"}.isdisjoint(one.section for one in report.missing)
    for attributes in page.attributes("a"):
        assert attributes["href"].startswith(("#", "https://huggingface.co/"))
        assert re.fullmatch(r"[\w#:/.-]+", attributes["href"])


def test_planted_markup_is_text_in_pictures(hostile):
    _, report = hostile
    pictures = Page(report.html).pictures()
    assert len(pictures) >= 6
    for _, content in pictures:
        text = content.decode()
        assert "\u202e" not in text
        assert "\x1b" not in text
        for one in ElementTree.fromstring(text).iter():
            assert one.tag.rpartition("}")[2] not in ("script", "b", "foreignObject")
            assert not [name for name in one.attrib if name.startswith("on")]


def test_commands_and_statements_survive_a_hostile_base(hostile):
    folder, report = hostile
    commands = [
        re.search(r"All: (.*)", text, re.S)[1] for _, kind, text in Page(report.html).paragraphs if kind == "rest"
    ]
    assert len(commands) >= 1
    for command in commands:
        words = shlex.split(command)
        assert words[0] == "query"
        if words[1] == "sql":
            with Atlas(folder) as atlas:
                atlas.sql(words[2])  # a statement that can be run; its base is shown with escapes
        else:
            assert words[2] == "--base"


# ---- small and odd atlases


def odd_atlases():
    """Models, and the sections in which something must be said to be missing; ``SLOW`` of them wait for -m slow."""
    models = family()
    silent = [replace(one, datasets=()) for one in models]
    return {
        "nothing": ([], {"crawl", "names", "purity", "map", "clusters", "prediction", "rank", "pairs"}),
        "only skipped": (
            [skipped("a/b", "gated")],
            {"names", "purity", "map", "clusters", "prediction", "rank", "pairs"},
        ),
        "one": (models[:1], {"purity", "clusters", "prediction", "rank", "pairs"}),
        "two": ([models[0], models[6]], {"clusters", "rank"}),
        "two of one dataset": (models[:2], {"clusters", "rank"}),
        "five": ([*models[:3], *models[6:8]], {"clusters", "rank"}),
        "only a copy": (
            [Paper("a/b", is_copy=True)],
            {"names", "purity", "map", "clusters", "prediction", "rank", "pairs"},
        ),
        "no datasets": (silent, {"names", "purity", "prediction", "rank"}),
        "one author": ([replace(one, author="solo") for one in models], {"prediction", "rank", "pairs"}),
        "one dataset": ([replace(one, datasets=("d",)) for one in models], {"rank"}),
        "no ranks": ([replace(one, ranks=None) for one in models], {"rank"}),
        "all alike": ([replace(one, vector=models[0].vector) for one in models], {"rank"}),
    }


SLOW = ("five", "two of one dataset", "one dataset", "no ranks", "all alike")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in odd_atlases()]
)
def test_odd_atlases_give_a_page_that_says_what_is_missing(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "umap", None)  # its import alone takes longer than all of these
    models, missing = odd_atlases()[name]
    builds = [] if name == "nothing" else BUILDS
    with Atlas(write_atlas(tmp_path, models, builds=builds)) as atlas:
        report = atlas.report()
    page = Page(report.html)
    assert list(report.sections) == SECTIONS
    assert report.models == len(indexed(models))
    found = {one.section for one in report.missing if "umap" not in one.why}
    if name in ("two", "two of one dataset", "five"):
        found -= {"purity", "prediction"}  # may say something or nothing
    assert found == missing
    for one in report.missing:
        assert one.why in page.missing(one.section)
        assert len(one.why) > 20
    assert all(page.said(section) for section in SECTIONS if section != "words")


def test_an_atlas_without_any_representation(tmp_path):
    with Atlas(write_atlas(tmp_path, family(), representations=())) as atlas:
        report = atlas.report()
    why = {one.section: one.why for one in report.missing}
    assert why["purity"] == "No representation is published for this base."
    assert "index represent input" in why["map"]
    assert Page(report.html).table("Datasets by number of models").column("models") == ["6", "6", "6"]


def test_without_matplotlib_the_pictures_are_sentences_and_the_rest_stays(tmp_path, monkeypatch):
    folder = write_atlas(tmp_path, family())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "umap", None)
    with Atlas(folder) as atlas:
        report = atlas.report()
    page = Page(report.html)
    assert not page.attributes("img")
    for section in ("purity", "prediction", "rank"):
        assert any("vectors-in-the-wild[studies]" in text for text in page.missing(section))
    assert "umap-learn" in page.missing("map")[0]
    assert page.table("Purity by representation").rows
    assert page.table("Rank of δW by family").rows


def test_errors_of_ours_are_not_swallowed(tmp_path, monkeypatch):
    def broken(*_arguments, **_options):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("query.cluster.clusters", broken)
    with Atlas(write_atlas(tmp_path, [])) as atlas, pytest.raises(ZeroDivisionError):
        atlas.report()


def test_an_unknown_base_is_refused(folder):
    with Atlas(folder) as atlas, pytest.raises(AtlasError, match="not a base of this atlas"):
        atlas.report("somebody/else")


# ---- words and parts


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0, "0 %"), (1, "100 %"), (0.5, "50 %"), (0.085, "8.5 %"), (0.0949, "9.5 %"), (0.1, "10 %"), (0.994, "99 %"),
     (0.9951, "99.5 %"), (0.99999, "> 99.9 %"), (0.0001, "< 0.1 %"), (None, "–")],
)  # fmt: skip
def test_percent(share, shown):
    assert wording.percent(share).replace("\u00a0", " ") == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (72_600_000, "72.6 MB"), (205_092_904, "205 MB"),
     (999_600, "1.0 MB"), (3_200_000_000_000_000, "3200 TB")],
)  # fmt: skip
def test_size(number, shown):
    assert wording.size(number).replace("\u00a0", " ") == shown


def test_numbers():
    assert wording.decimal(-0.0001) == "0.00"
    assert wording.decimal(-0.126) == "−0.13"
    assert wording.duration(89.0) == "89\u00a0s"
    assert wording.duration(150.0) == "2\u00a0min"
    assert wording.counted(1, "copy", "copies") == "1 copy"
    assert wording.counted(1234, "copy", "copies") == "1,234 copies"
    assert wording.literal("o'rg") == "'o''rg'"
    assert shlex.split(wording.sql("SELECT 'it''s $HOME'")) == ["query", "sql", "SELECT 'it''s $HOME'"]


def test_parts_are_escaped_unless_they_are_markup():
    assert (
        str(element("p", "<b>", element("i", "&"), title='"x"')) == '<p title="&quot;x&quot;">&lt;b&gt;<i>&amp;</i></p>'
    )
    assert str(joined("<", None, 3)) == "&lt;3"
    assert 'href="https://huggingface.co/owner/name"' in str(model("owner/name"))
    for strange in ("/home/me/model", "../x", "a/b/c", "owner/na me", "javascript:x", "owner/..", "", "a" * 500):
        assert "href" not in str(model(strange))


def test_long_tables_are_cut_and_the_command_gives_all(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    models = [Paper(f"a{n}/m", datasets=(f"set{n:02}",)) for n in range(40)]
    folder = write_atlas(tmp_path, models, base="o'rg/base")
    with Atlas(folder) as atlas:
        page = Page(atlas.report().html)
        assert len(page.table("Datasets by number of models").rows) == 25
        more, command = re.search(r"and (\d+) more\. All: (query sql .*dataset_counts.*)", page.said("names")).groups()
        assert int(more) == 15
        assert len(atlas.sql(shlex.split(command)[-1]).rows) == 40


def test_pictures_of_many_points_are_images():
    def figure(theme):
        drawn, axes = new_figure(2, 1, theme)
        axes.plot([0, 1])
        return drawn

    kinds = []
    for marks in (1500, 1501):
        writer = Writer("map", "The map")
        add_picture(writer, figure, "what it shows", "caption", marks=marks)
        kinds += {kind for kind, _ in Page(str(writer.done().body)).pictures()}
    assert kinds == ["image/svg+xml", "image/png"]


def score(purity, chance, p_value):
    from query.purity import Score

    return Score(models=9, candidates=9, datasets=2, purity=purity, chance=chance, p_value=p_value, note="Why not.")


@pytest.mark.parametrize(
    ("plain", "across", "ending"),
    [
        ((0.8, 0.1, 0.001), (0.8, 0.1, 0.001), "not only because one person made them."),
        ((0.8, 0.1, 0.001), (0.2, 0.1, 0.3), "habits of single uploaders."),
        ((0.2, 0.1, 0.3), (0.2, 0.1, 0.3), "do not show that the vectors know the data."),
        ((0.05, 0.1, 0.001), (0.2, 0.1, 0.3), "do not show that the vectors know the data."),
        ((0.8, 0.1, 0.001), (None, None, None), "only whose scripts were used."),
    ],
)  # fmt: skip
def test_the_verdict_on_purity_says_no_more_than_the_numbers(plain, across, ending):
    from query.purity import PurityResult

    result = PurityResult(**vars(score(*plain)), base="b", representation="input", cross_author=score(*across))
    sentences = purity_section.verdict(result)
    assert sentences[-1].endswith(ending)
    if across[0] is None:
        assert "Why not." in sentences[-1]


# ---- as a person would


def test_the_command_writes_the_page(tmp_path):
    models = [*family()[:5], skipped("a/b", "gated")]  # too few for UMAP, whose import takes long
    folder = write_atlas(tmp_path / "paper", models, builds=BUILDS)
    shell = Shell("http://127.0.0.1:9", tmp_path)
    ran = shell("query", "report", "--atlas", str(folder), "--out", "page.html", "--json")
    assert ran.code == 0, ran.err
    written = (tmp_path / "page.html").read_text()
    assert ran.json["base"] == BASE
    assert ran.json["models"] == 5
    assert ran.json["sections"] == SECTIONS
    assert ran.json["bytes"] == len(written.encode())
    assert ran.json["file"] == "page.html"
    assert {one["section"] for one in ran.json["missing"]} >= {"rank", "clusters"}
    assert [line for line in ran.err.splitlines() if re.match(r"\d+ of 12: ", line)][3].endswith("representation")
    refused = shell("query", "report", "--atlas", str(folder), "--out", "page.pdf")
    assert refused.code == 1
    assert "page.pdf is none of .html" in refused.err


@pytest.mark.skipif(bool(missing_browser()), reason=missing_browser())
def test_in_a_browser_it_asks_for_nothing_and_fits(report, hostile, tmp_path):
    for name, html in (("plain", report.html), ("hostile", hostile[1].html)):
        file = tmp_path / f"{name}.html"
        file.write_text(html)
        with Browser() as browser:
            shown = {}
            for scheme in ("light", "dark"):
                browser.size(390, 800)
                browser.scheme(scheme)
                browser.open(file)
                browser.wait("[...document.images].every((one) => one.complete && one.naturalWidth)")
                shown[scheme] = browser.run("return [...document.images].map((one) => one.currentSrc)")
                assert browser.run("return document.documentElement.scrollWidth") == 390
                assert browser.run("return window.pwned === undefined && !document.getElementById('planted')")
                assert [address for address in browser.requests() if not address.startswith("data:")] == [file.as_uri()]
                assert browser.console() == []
            assert not set(shown["light"]) & set(shown["dark"])
            assert len(shown["light"]) == len(Page(html).attributes("img"))
