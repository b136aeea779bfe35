"""How to make this page again, and what must be known before its numbers are quoted."""

from __future__ import annotations

import json
import shlex

from query.reader import PUBLIC_HUB
from query.report.markup import Html, Part, code, element, joined
from query.report.section import Section, Source, Writer
from query.wording import counted, percent

ANCHOR, TITLE = "method", "How to make this page again, and what to keep in mind"

_USUAL_RANK = 8


def write(source: Source) -> Section:
    """The commands, then the caveats."""
    writer = Writer(ANCHOR, TITLE)
    writer.heading("Commands")
    writer.paragraph(
        "In the folder that holds the atlas (elsewhere with ", code("--atlas DIR"), "). The same atlas and the same "
        "seed give the same page.",
    )  # fmt: skip
    writer.add(element("pre", code("\n".join(_commands(source)))))
    writer.heading("Caveats")
    writer.points(_caveats(source))
    return writer.done()


def _commands(source: Source) -> list[str]:
    base = shlex.quote(source.base)
    options = "".join(f" {shlex.quote(word)}" for word in _build_options(source))
    published = source.rows("SELECT representation FROM representations WHERE base = ? ORDER BY representation")
    names = [row["representation"] for row in published if row["representation"] != "input"]
    return [
        "pip install -c constraints.txt '.[studies]'    # in the folder of the project",
        *(
            [f"export HF_ENDPOINT={shlex.quote(source.crawled.endpoint)}"]
            if source.crawled.endpoint != PUBLIC_HUB
            else []
        ),
        f"index build --base {base}{options}",
        *(f"index represent {shlex.quote(name)}" for name in names),
        source.command("report", f"--seed {source.seed} --out report.html"),
        "",
        "# the parts of it, with more detail and as JSON",
        *(source.command(name, "--json") for name in ("purity", "clusters", "rank", "predict --evaluate")),
        source.command("map", f"--seed {source.seed} --out map.html"),
    ]


def _build_options(source: Source) -> list[str]:
    """Those of the latest crawl, as typed; of an atlas that does not keep them what its records tell."""
    if source.crawled.options is not None:
        return list(source.crawled.options)
    rows = source.rows("SELECT spec FROM builds WHERE base = ? ORDER BY build_id DESC LIMIT 1")
    spec = json.loads(rows[0]["spec"] or "{}") if rows else {}
    rank = spec.get("rank", _USUAL_RANK)
    return [*(["--rank", str(rank)] if rank != _USUAL_RANK else []), *(["--spectra"] if spec.get("spectra") else [])]


def _caveats(source: Source) -> list[Part]:
    return [
        *_about_adapters(source),
        "The default representation was chosen because it did best on other, smaller families of models. That is a "
        "development result: read its lead over the others here as a test of that choice, and the lead on bases that "
        "took part in choosing as no test at all.",
        "Who uploads matters. Runs of one script by one person are alike whatever their data: quote the cross-author "
        "numbers where there are any.",
        "Datasets are what people wrote. Most models name none, some name what they were tested on, some are wrong.",
        "The vectors know the text first. Two tasks on the same sentences are hard to tell apart.",
        "Embeddings, heads, biases and normalisation layers are not compared, nor are models of different bases.",
        "A map squeezes thousands of numbers into two: look for heaps, and check what you see against the clusters and "
        "against purity, which use all of them.",
    ]  # fmt: skip


def _about_adapters(source: Source) -> list[Html]:
    """That similarities with adapters stand on fewer matrices."""
    (row,) = source.rows(
        "SELECT count(*) AS models, min(share) AS least, median(share) AS middle FROM ("
        "  SELECT model_id, count(*) FILTER (norm > 0) / len(any_value(deltas)) AS share "
        "  FROM deltas JOIN models USING (model_id) JOIN bases USING (base) "
        "  WHERE base = ? AND relation = 'adapter' GROUP BY model_id HAVING share > 0)"
    )
    if not row["models"]:
        return []
    return [
        joined(
            f"Adapters change only some matrices, and are compared with other models over those that both changed: "
            f"{counted(row['models'], 'adapter')} here {'changes' if row['models'] == 1 else 'change'} from "
            f"{percent(row['least'])} of the matrices; the median is {percent(row['middle'])}."
        )
    ]
