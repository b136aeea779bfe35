"""What the page is, the words it uses, how to make it again, and what to know before its numbers are quoted."""

from __future__ import annotations

import json
import shlex

from query.glossary import words
from query.reader import PUBLIC_HUB
from query.report.page import Part, Section, Source, code
from query.wording import counted, percent

_USUAL_RANK = 8


def opening(source: Source) -> tuple[Part, ...]:
    """What was compared and how, and what datasets and authors are used for."""
    found = source.number("SELECT count(*) FROM fine_tunes WHERE base = ?")
    indexed = source.number("SELECT count(*) FROM models WHERE base = ?")
    return (
        "This page describes the models on the Hugging Face Hub that were made from ", source.model(source.base),
        f" by fine-tuning: {counted(found, 'model was', 'models were')} found, and the weights of {indexed:,} could be "
        "read and compared. Every attention and feed-forward matrix of a model was compared with the base's. What "
        "fine-tuning changed, not what the model's card says, was condensed into one vector, and two models are called "
        "similar if their vectors point the same way. Datasets and authors, as named on the Hub, serve only to judge "
        "the result: they never decide where a model lies.",
    )  # fmt: skip


def glossary(_source: Source, section: Section) -> None:
    """The words used on the page."""
    section.add("terms", terms=list(words().items()))


def method(source: Source, section: Section) -> None:
    """The commands that make this page, then the caveats."""
    section.heading("Commands")
    section.paragraph(
        "Run these in the folder that contains the atlas, or add ", code("--atlas DIR"), ". The same atlas and the "
        "same seed give the same page.",
    )  # fmt: skip
    base = shlex.quote(source.base)
    options = "".join(f" {shlex.quote(word)}" for word in _build_options(source))
    published = source.rows("SELECT representation FROM representations WHERE base = ? ORDER BY representation")
    further = [row["representation"] for row in published if row["representation"] != "input"]
    endpoint = source.crawled.endpoint
    lines = [
        "pip install -c constraints.txt '.[studies]'    # in the folder of the project",
        *([f"export HF_ENDPOINT={shlex.quote(endpoint)}"] if endpoint != PUBLIC_HUB else []),
        f"index build --base {base}{options}",
        *(f"index represent {shlex.quote(name)}" for name in further),
        source.command("report", f"--seed {source.seed} --out report.html"),
        "",
        "# its parts, in more detail and as JSON",
        *(source.command(name, "--json") for name in ("purity", "clusters", "rank", "predict --evaluate")),
        source.command("map", f"--seed {source.seed} --out map.html"),
    ]
    section.add("commands", text="\n".join(lines))
    section.heading("Caveats")
    caveats = (
        *_about_adapters(source),
        "The default representation was chosen because it did best on other, smaller families of models. That is a "
        "development result: read its lead over the others here as a test of that choice. On bases that took part "
        "in choosing it, its lead is not a test at all.",
        "Who uploads matters. Runs of one script by one person are alike whatever their data: quote the "
        "cross-author numbers if there are any.",
        "Datasets are what people wrote. Most models name none, some name what they were tested on, some are wrong.",
        "The vectors reflect the text first. Two tasks on the same sentences are hard to tell apart.",
        "Embeddings, heads, biases and normalisation layers are not compared. Models of different bases are not "
        "compared with each other.",
        "A map squeezes thousands of numbers into two: look for groups, and check what you see against the "
        "clusters and against purity, which use all of them.",
    )
    section.add("points", points=caveats)


def _build_options(source: Source) -> list[str]:
    """The options of the latest crawl, as typed; for an atlas that does not keep them, those its records imply."""
    if source.crawled.options is not None:
        return list(source.crawled.options)
    rows = source.rows("SELECT spec FROM builds WHERE base = ? ORDER BY build_id DESC LIMIT 1")
    spec = json.loads(rows[0]["spec"] or "{}") if rows else {}
    rank = spec.get("rank", _USUAL_RANK)
    return [*(["--rank", str(rank)] if rank != _USUAL_RANK else []), *(["--spectra"] if spec.get("spectra") else [])]


def _about_adapters(source: Source) -> list[str]:
    """That similarities with adapters rest on fewer matrices."""
    (row,) = source.rows(
        "SELECT count(*) AS models, min(share) AS least, median(share) AS middle FROM ("
        "  SELECT model_id, count(*) FILTER (norm > 0) / len(any_value(deltas)) AS share "
        "  FROM deltas JOIN models USING (model_id) JOIN bases USING (base) "
        "  WHERE base = ? AND relation = 'adapter' GROUP BY model_id HAVING share > 0)"
    )
    if not row["models"]:
        return []
    return [
        "Adapters change only some matrices, and are compared with other models over those that both changed. The "
        f"{counted(row['models'], 'adapter')} here {'changes' if row['models'] == 1 else 'change'} at least "
        f"{percent(row['least'])} of the matrices; the median is {percent(row['middle'])}."
    ]
