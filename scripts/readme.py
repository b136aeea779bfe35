"""Put the demo's output into README.md: one command updates every figure there that depends on vectors.

``python -m scripts.readme .demo`` copies the demo's replies to docs/evidence/demo.json and writes them into README.md: below
every ``$ command`` of a console block whose reply is known, and between the comments ``demo:NAME`` of a sentence.
The
ranges over several trainings are from docs/evidence/trainings.json (``python -m studies.trainings``). A test compares README.md
with both.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.child import PROJECT
from scripts.tables import decimal, filled

README, REPLIES = PROJECT / "README.md", PROJECT / "docs" / "evidence" / "demo.json"
TRAININGS = PROJECT / "docs" / "evidence" / "trainings.json"  # written by studies.trainings

BASE = "atlas-demo/tiny-roberta"
BUILD = f"index build --base {BASE} --discover names --spectra"
PREDICT = "query predict small-hours/tiny-roberta-in-house"
TRACE = "query trace small-hours/tiny-roberta-in-house"  # README.md shows its first sentence
# What README.md shows of the demo, as typed.
COMMANDS = (
    BUILD,
    "query similar gridsweep/tiny-roberta-exception-types-lr3e-4-s7 -k 3 --other-authors",
    PREDICT,
    TRACE,
)
# Asked as JSON, for the sentences.
EVALUATE = f"query predict --evaluate --base {BASE} --json"

_BLOCK = re.compile(r"(?<=```console\n).*?(?=^```)", re.DOTALL | re.MULTILINE)
_ASKED = re.compile(r"^\$ (.+)\n((?:(?!\$ |\n\$ ).*\n)*)", re.MULTILINE)


def with_replies(text: str, replies: Mapping[str, str]) -> str:
    """README's text with current replies below their commands, and current sentences."""
    trainings: list[dict[str, Any]] = json.loads(TRAININGS.read_text(encoding="utf-8"))

    def block(found: re.Match[str]) -> str:
        def answered(asked: re.Match[str]) -> str:
            reply = replies.get(asked[1])
            if reply is None:
                return asked[0]
            shown = reply.partition("\n\n")[0] if asked[1] == TRACE else reply.rstrip()
            return f"$ {asked[1]}\n{shown}\n"

        return _ASKED.sub(answered, found[0])

    sentences = {
        "demo:models": _models(replies, trainings),
        "demo:prediction": _prediction(replies, trainings),
        "demo:trainings": _trainings(trainings),
    }
    return filled(_BLOCK.sub(block, text), sentences)


def _span(trainings: Sequence[Mapping[str, Any]], size: str, name: str, places: int = 2) -> str:
    """The smallest and the largest of a figure over the trainings of one size: ".81 to .86"."""
    values = [one[name] for one in trainings if one["size"] == size]
    low, high = decimal(min(values), places), decimal(max(values), places)
    return low if low == high else f"{low} to {high}"


def _trainings(trainings: Sequence[Mapping[str, Any]]) -> str:
    full = [one for one in trainings if one["size"] == "full"]
    spans = []
    for name in full[0]["representations"]:
        values = [one["representations"][name][0] for one in full]
        spans.append(f"`{name}` {decimal(min(values), 2)} to {decimal(max(values), 2)}")
    return (
        f"A second training gives other figures. Over {len(full)} trainings of the RoBERTa family from other seeds, "
        f"purity was: {', '.join(spans)}; across authors, `input` had {_span(trainings, 'full', 'across')}.\n`make demo` "
        f"trains the same models for a shorter time: there `input` had {_span(trainings, 'demo', 'purity')} "
        f"({_span(trainings, 'demo', 'across')} across authors)."
    )


def _models(replies: Mapping[str, str], trainings: Sequence[Mapping[str, Any]]) -> str:
    indexed = re.search(r"^indexed\s+(\d+)$", replies[BUILD], re.MULTILINE)
    count = sum(one["size"] == "demo" for one in trainings)
    return (
        "The picture and the figures on this page come from one run of `make demo`: "
        f"{indexed[1] if indexed else 'some'} real fine-tunes of a small RoBERTa,\ntrained on text that every installation "
        "has, with the oddities that the Hub is full of. On another machine, or with other\nseeds, other models come out "
        f"of it: over {count} trainings, purity was {_span(trainings, 'demo', 'purity')}, and "
        f"{_span(trainings, 'demo', 'right')} of predictions were right."
    )


def _prediction(replies: Mapping[str, str], trainings: Sequence[Mapping[str, Any]]) -> str:
    found: dict[str, Any] = json.loads(replies[EVALUATE])
    by = {score["evidence"]: score for score in found["scores"]}

    def share(number: float) -> str:
        return decimal(number, 2)

    together = by["together"]
    ends = next(row["accuracy"] for row in found["intervals"] if row["evidence"] == "together")
    between = f"95 % interval {share(ends[0])} to {share(ends[1])}; " if ends else "too few authors for an interval; "
    return (
        f"Probabilities are calibrated by leaving each author out in turn: on the demo {share(together['accuracy'])} of "
        f"{found['models']} models are named right\n({between}majority {share(by['majority']['accuracy'])}, chance "
        f"{share(by['chance']['accuracy'])}), with vectors alone {share(by['vectors']['accuracy'])} and with the head's "
        f"labels alone {share(by['head']['accuracy'])};\nBrier score {share(together['brier'])}, calibration error "
        f"{share(together['calibration_error'])}. Over several trainings: {_span(trainings, 'demo', 'right')} right, Brier "
        f"score {_span(trainings, 'demo', 'brier')}."
    )


def main() -> None:
    """Update docs/evidence/demo.json, docs/map.png and README.md from the folder of a demo."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".demo")
    replies = (folder / REPLIES.name).read_text(encoding="utf-8").replace(str(folder.resolve()), ".demo")
    REPLIES.write_text(replies, encoding="utf-8")
    shutil.copyfile(folder / "map.png", PROJECT / "docs" / "map.png")
    README.write_text(
        with_replies(README.read_text(encoding="utf-8"), json.loads(REPLIES.read_text(encoding="utf-8"))),
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
