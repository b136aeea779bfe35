"""The report of a known atlas: its form, and every number counted again."""

from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter

import numpy as np
import pytest

from query import Atlas
from query.faces.report.reasons import REASONS
from query.shared import wording
from tests.atlas_builder import BASE, DELTAS, family, vectors_of, write_atlas
from tests.conftest import ROOT
from tests.report.conftest import BUILDS, SECTIONS, indexed, population
from tests.report_reader import Page

# ---- the page as a page


def test_every_section_is_there_in_order_and_reachable(report, page):
    assert list(report.sections) == SECTIONS
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert [identity for identity in ids if identity in SECTIONS] == SECTIONS
    links = [attributes["href"] for attributes in page.attributes("a")]
    assert {link[1:] for link in links if link.startswith("#")} == set(SECTIONS) - {"words", "method"} | set(SECTIONS)
    titles = [text for tag, text in page.headings if tag == "h2"]
    numbered = [text for text in titles if text[0].isdigit()]
    assert [text.split()[0] for text in numbered] == [str(number) for number in range(1, len(SECTIONS) + 1)]
    assert [text.removeprefix("1 ") for text in titles[:2]] == ["What this says", "The map"]
    assert titles[-1].endswith("The terms used here")


def test_one_paragraph_says_what_the_answers_say(folder, page):
    (paragraph,) = [text for _, kind, text in page.paragraphs if kind == "opening"]
    with Atlas(folder) as atlas:
        said = [atlas.clusters().headline, atlas.evaluate_prediction().headline, atlas.rank().headline]
    for sentence in said:
        assert " ".join(sentence.split()) in " ".join(paragraph.split())
    assert page.text.index(said[0]) < page.text.index("Every point is a model")


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
    policy = [
        attributes["content"]
        for attributes in page.attributes("meta")
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy[0].startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'")
    for attributes in page.attributes("a"):
        if not attributes["href"].startswith("#"):
            assert re.fullmatch(r"https://huggingface\.co/[\w.-]+/[\w.-]+", attributes["href"])
            assert set(attributes["rel"].split()) == {"noopener", "nofollow"}
    for attributes in page.attributes("source"):
        assert attributes["media"] == "screen and (prefers-color-scheme: dark)"
    assert {kind for kind, _ in page.pictures()} == {"image/svg+xml"}
    assert len(page.pictures()) == 2 * len(page.attributes("img")) == 2 * 4


@pytest.mark.slow
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
    counts = Counter(model.status for model in models)
    assert {status: int(row["models"]) for status, row in table.items()} == counts
    assert table["indexed"]["share"] == f"{100 * counts['indexed'] / len(models):.0f}\u00a0%"
    assert page.key_numbers[f"models found that claim {BASE}"] == str(len(models))
    origins = page.table("How they say they were made").by_first()
    assert {name: (int(row["found"]), int(row["indexed"])) for name, row in origins.items()} == {
        "finetune": (len(models) - 1, counts["indexed"] - 1), "adapter": (1, 1),
    }  # fmt: skip
    assert origins["adapter"]["claimed by"] == "the Hub's base_model tag (1)"


def test_every_reason_is_explained_in_plain_words_with_an_example(page):
    table = page.table("Skipped and failed models by reason").by_first()
    reasons = Counter(model.reason for model in population() if model.reason)
    assert {reason: int(row["models"]) for reason, row in table.items()} == reasons
    assert table["unreadable_format"]["in plain words"] == REASONS["unreadable_format"]
    assert table["unreadable_format"]["an example"] == "kim/flax"
    assert table["unreadable_format"]["details of the example"] == "only as flax"
    assert table["timeout"]["status"] == "failed"
    assert "No explanation" in table["a_reason_of_tomorrow"]["in plain words"]


def test_every_reason_of_the_indexer_is_explained():
    """Codes as its source has them."""
    source = "\n".join(file.read_text() for file in sorted((ROOT / "indexer").rglob("*.py")))
    codes = set(re.findall(r'(?:Skipped|Failed)\(\s*"([a-z_]+)"', source))
    codes |= set(re.findall(r'(?:Skipped|Failed), "([a-z_]+)"', source))
    codes |= set(re.findall(r'_(?:failed|setback)\("([a-z_]+)"', source))
    assert len(codes) > 20
    assert codes <= set(REASONS)


def test_what_was_read_and_when(page):
    models = indexed(population())
    text = page.section_text("crawl")
    assert f"To index {len(models)} models, {len(models)}.0\u00a0kB of the {5 * len(models)}" in text
    assert "on 1 March 2026" in text
    assert "generation 3, published on 1 March 2026 by vectors-in-the-wild 0.1.0" in text
    assert "c" * 40 in page.codes
    assert "numpy 2.4.6" in text
    builds = page.table("Builds")
    assert builds.column("read") == ["0\u00a0bytes", "7.0\u00a0MB"]  # the latest first
    assert builds.column("took") == ["30\u00a0s", "2.0\u00a0h"]
    assert builds.column("unchanged") == ["7", "0"]


def test_datasets_with_spellings_merged_and_the_share_of_the_largest_author(page):
    models = indexed(population())
    table = page.table("Datasets by number of models").by_first()
    counts = Counter(name for model in models for name in set(model.datasets))
    assert {name: int(row["models"]) for name, row in table.items()} == counts
    for name, row in table.items():
        authors = Counter(model.owner for model in models if name in model.datasets)
        assert int(row["authors"]) == len(authors)
        assert row["share of its largest author"] == wording.percent(max(authors.values()) / counts[name])
    assert table["data/set0"]["as spelt"] == "Data/SET0, data/set0"
    assert list(table) == sorted(counts, key=lambda name: (-counts[name], name))
    documented = sum(bool(model.datasets) for model in models)
    assert f"{documented} indexed models name a dataset" in page.section_text("names")
    assert "4 datasets in 6 spellings" not in page.section_text("names")
    assert f"together they name {len(counts)} datasets in {len(counts) + 1} spellings" in page.section_text("names")


def test_authors(page):
    models = indexed(population())
    counts = Counter(model.owner for model in models)
    table = page.table("Authors by number of models").by_first()
    assert {name: int(row["models"]) for name, row in table.items()} == counts
    downloads = Counter()
    for model in models:
        downloads[model.owner] += model.downloads
    assert {name: int(row["downloads"].replace(",", "")) for name, row in table.items()} == downloads
    largest = wording.percent(max(counts.values()) / len(models))
    assert page.key_numbers[f"authors; the largest uploaded {largest} of the models"] == str(len(counts))


def brute_purity(models, representation, across):
    """DESIGN.md's definition, in plain loops: (purity, chance, number of scored models)."""
    ids, vectors = vectors_of(models, representation)
    datasets_of = {}
    for row, model in enumerate(models):
        leader = row if model.duplicate_of is None else model.duplicate_of - 1
        if model.vector is not None and not model.is_unrelated:
            datasets_of.setdefault(leader, set()).update(model.datasets)
    rows = [row for row in sorted(datasets_of) if datasets_of[row]]
    row_of = {int(identity) - 1: number for number, identity in enumerate(ids)}
    purities, chances = [], []
    for row in rows:
        others = [
            other for other in rows
            if other != row and not (across and models[other].owner == models[row].owner)
        ]  # fmt: skip
        matching = [other for other in others if datasets_of[other] & datasets_of[row]]
        if not matching:
            continue
        vector = vectors[row_of[row]].astype(np.float64)
        near = sorted(others, key=lambda other: (-round(float(vectors[row_of[other]] @ vector), 9), other))[
            : len(matching)
        ]
        purities.append(np.mean([other in matching for other in near]))
        chances.append(len(matching) / len(others))
    return float(np.mean(purities)), float(np.mean(chances)), len(purities)


@pytest.mark.parametrize("representation", ["input", "seed"])
def test_purity_is_what_plain_loops_give(page, representation):
    table = page.table("Purity by representation")
    rows = [dict(zip(table.head, row, strict=True)) for row in table.rows if row[0] == representation]
    assert [row["among"] for row in rows] == ["all", "by other authors"]
    for across, row in zip((False, True), rows, strict=True):
        purity, chance, scored = brute_purity(population(), representation, across)
        assert row["purity"] == f"{purity:.2f}"
        assert row["chance"] == f"{chance:.2f}"
        assert row["models"] == str(scored)
        low, high = map(float, row["95 %"].split("–"))
        assert low <= purity + 0.005
        assert purity - 0.005 <= high
    if representation == "input":
        assert f"{wording.percent(brute_purity(population(), 'input', False)[0])} of a model's" in page.section_text(
            "purity"
        )


def test_clusters_are_the_groups_of_the_atlas(page):
    table = page.table("Clusters, the largest first")
    # Each group of seven; the undocumented one is of the first, the adapter of the second.
    assert Counter(table.column("size")) == Counter({"8": 2, "7": 1})
    rows = dict(zip(table.column("dataset"), table.column("undocumented"), strict=True))
    assert rows["data/set0"] == "1"
    assert sorted(rows.values()) == ["0", "0", "1"]
    silent = page.table("Members that name no dataset")
    assert silent.column("model") == ["zoe/silent"]
    assert silent.column("probably") == ["data/set0"]
    figures = {meaning.partition(";")[0]: value for section, meaning, value in page.figures if section == "clusters"}
    assert figures["agreement of clusters and datasets"] == "1.00"
    assert len(figures) == 3
    assert "agree to 1.00 of 1 by adjusted mutual information" in page.section_text("clusters")


def test_the_undocumented_model_gets_the_dataset_of_its_group(page):
    table = page.table("Probable datasets of undocumented models")
    assert table.column("model") == ["zoe/silent"]
    assert table.column("dataset") == ["data/set0"]
    assert "1 model that was compared names no dataset" in page.section_text("prediction")


def test_prediction_is_shown_next_to_the_baselines(folder, page):
    with Atlas(folder) as atlas:
        evaluation = atlas.evaluate_prediction()
    # Its accuracy once more, from the single outcomes.
    right = np.average(
        [outcome.right > 0 for outcome in evaluation.outcomes],
        weights=[outcome.weight for outcome in evaluation.outcomes],
    )
    table = page.table("Predictions of documented models")
    assert table.rows[0][1].partition(" ")[0] == f"{right:.2f}"
    assert table.column("evidence") == [score.evidence for score in evaluation.scores]
    assert [value.partition(" ")[0] for value in table.column("accuracy")] == [
        f"{score.accuracy:.2f}" for score in evaluation.scores
    ]
    assert table.column("brier") == [f"{score.brier:.2f}" for score in evaluation.scores]
    assert table.column("evidence")[-2:] == ["majority", "chance"]  # the baselines


def test_rank_curves_follow_the_known_laws(page):
    table = page.table("Rank of δW: best fit").by_first()
    means = page.table("Rank of δW: mean rank")
    assert table["query"]["equation"] == "rank ≈ 2 + 1·x"
    assert table["value"]["equation"] == "rank ≈ 5"
    counted = [
        model
        for model in indexed(population())
        if not model.is_copy and not model.is_unrelated and model.duplicate_of is None
    ]
    for name in ("query", "value"):
        columns = [column for column, delta in enumerate(DELTAS) if delta.endswith(name)]
        for layer, column in enumerate(columns):
            ranks = [model.ranks[column] for model in counted if model.ranks[column]]
            assert means.column(name)[layer] == f"{np.mean(ranks):.1f}"
    assert f"over {len(counted)} models" in page.text.replace("\n", " ")  # the adapter touches the first query
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
        if a < b and models[ids[a] - 1].owner != models[ids[b] - 1].owner
    ]  # fmt: skip
    best = sorted((pair for pair in pairs if pair[0] > 0), reverse=True)
    table = page.table("The most similar pairs by different authors")
    pairs_shown = [(float(row[2]), frozenset(row[:2])) for row in table.rows]
    assert [similarity for similarity, _ in pairs_shown] == [round(similarity, 3) for similarity, *_ in best[:20]]
    assert {names for _, names in pairs_shown} == {frozenset(names) for _, *names in best[:20]}
    more, command = re.search(r"and ([\d,]+) more\. All: (query sql .*)", page.section_text("pairs")).groups()
    assert int(more.replace(",", "")) + 20 == len(best)
    with Atlas(folder) as atlas:
        assert len(atlas.sql(shlex.split(command)[-1]).rows) == len(best)


def test_suspicious_claims(page):
    (row,) = page.table("1 claim that the weights contradict").rows
    assert row == ["kim/stranger", "kim", "finetune", "the Hub's base_model tag", "−0.012", "7"]
    assert "For 1 model this cannot be checked" in page.section_text("claims")


def test_hints_can_be_copied(page):
    assert any(code.startswith("pip install") and "index represent seed" in code for code in page.codes)
