"""README.md: front matter and the Trainer's sentence, honest and hostile."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.cards.modelcard import read_row
from indexer.cards.readme import card_facts, trainer_sentence
from tests.conftest import ROOT

SHARED = ROOT.parent / "shared" / "data"

README = """---
license: mit
language: no
datasets:
- glue
- 2021-01-01
date: 2021-01-01
1: one
metrics:
- accuracy
---

# My model
---
datasets: [imdb]
---
"""


def test_front_matter():
    card = card_facts(README)
    assert card == {
        "license": "mit",
        "language": False,
        "datasets": ["glue", "2021-01-01"],
        "date": "2021-01-01",
        "1": "one",
        "metrics": ["accuracy"],
    }
    assert card_facts("\ufeff" + README.replace("\n", "\r\n")) == card
    read = read_row({"id": "alice/model", "cardData": card})
    assert (read.languages, read.license, read.dataset_names) == (("no",), "mit", ("glue",))


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# no front matter",
        "---\n---\n",
        "----\na: 1\n---\n",
        "---\na: 1\n",
        "---\na: [1\n---\n",
        "---\na: 1\n\tb: 2\n---\n",
        "---\n- a\n- b\n---\n",
        "---\njust words\n---\n",
        f"---\n{BOMB}---\n",
        "---\na: &x 1\nb: *x\n---\n",
        "---\na: !!python/object/apply:os.system ['echo hi']\n---\n",
        "---\na: " + "[" * 100_000 + "\n---\n",
        "---\na: " + "{a: " * 5_000 + "\n---\n",
        "---\na: 2021-99-99\n---\n",
        "---\na: 0x" + "f" * 9_000 + "\n? 0x" + "f" * 9_000 + "\n: 1\n---\n",
        "---\n? [a, b]\n: 1\n---\n",
        "---\na: \x07\n---\n",
        "---\na: \ud800\n---\n",
        "---\n" + "a: 1\n" * 400_000 + "---\n",
        "---\n" * 3,
    ],
)
def test_missing_or_unreadable_front_matter(text):
    assert card_facts(text) == {}


def test_front_matter_has_only_what_json_has():
    card = card_facts(
        "---\na: !!binary aGk=\nb: !!set {x, y}\nc: 12:30:45\nd: .nan\ne: 2001-12-14t21:59:43.10-05:00\n---\n"
    )
    assert card["a"] is None
    assert card["b"] == ["x", "y"]
    assert card["e"].startswith("2001-12-1")
    json.dumps(card)


LINK = "[bert-base-uncased](https://huggingface.co/bert-base-uncased)"


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        (f"This model is a fine-tuned version of {LINK} on the glue dataset.", ("bert-base-uncased", "glue")),
        (
            f"This model is a fine-tuned version of {LINK} on an unknown dataset.",
            ("bert-base-uncased", "unknown"),
        ),
        (f"This model is a fine-tuned version of {LINK} on the None dataset.", ("bert-base-uncased", "None")),
        (
            f"This model is a fine-tuned version of {LINK} on the GLUE MRPC dataset.\nIt",
            ("bert-base-uncased", "GLUE MRPC"),
        ),
        (f"a fine-tuned version of {LINK}.", ("bert-base-uncased", None)),
        (f"a fine-tuned version of\n{LINK} on\nthe glue\ndataset.", ("bert-base-uncased", "glue")),
        (
            f"a fine-tuned version of {LINK} on the glue, the squad and the imdb datasets.",
            ("bert-base-uncased", "glue, squad, imdb"),
        ),
        (
            f"a fine-tuned version of {LINK} on the [x](https://huggingface.co/datasets/a/b) dataset.",
            ("bert-base-uncased", "a/b"),
        ),
        (
            f"a fine-tuned version of {LINK} on our own sentences. The dataset is small.",
            ("bert-base-uncased", None),
        ),
        (f"a fine-tuned version of {LINK} on SQuAD 1.1 dataset", ("bert-base-uncased", "SQuAD 1.1")),
        (
            "a fine-tuned version of [BERT](https://huggingface.co/a/b/tree/main) on the x dataset",
            ("a/b", "x"),
        ),
        ("a fine-tuned version of [a/b](somewhere) on the x dataset", ("a/b", "x")),
        (
            "finetuned from [a/b](https://hf.co/a/b) on the [c](https://hf.co/datasets/c/d) dataset",
            ("a/b", "c/d"),
        ),
        ("fine-tuned version of [](https://huggingface.co/) on the x dataset", None),
        ("fine-tuned version of [None](https://huggingface.co/None) on the x dataset", None),
        ("fine-tuned version of [./out](https://huggingface.co/./out) on the x dataset", None),
        ("fine-tuned version of [a b](https://evil.example/a/b) on the x dataset", None),
        (
            f"fine-tuned version of [./out](x). A fine-tuned version of {LINK} on the x dataset",
            ("bert-base-uncased", "x"),
        ),
        (f"fine-tuned version of {LINK} on the gl\x1b[31mue dataset", ("bert-base-uncased", "gl[31mue")),
        ("", None),
        ("This model is trained from scratch on the glue dataset.", None),
    ],
)
def test_trainer_sentence(sentence, expected):
    assert trainer_sentence(sentence) == expected
    assert trainer_sentence(f"---\nlicense: mit\n---\n\n# x\n\n{sentence}\n\n## More\n") == expected


@pytest.mark.parametrize(
    "text",
    [
        "fine-tuned version of " * 500_000,
        "fine-tuned version of [" * 500_000,
        "fine-tuned version of [a](" * 500_000,
        "fine-tuned version of [a/b](x) on the " + "a, and the " * 500_000,
        "fine-tuned version of" + " " * 5_000_000,
        "[" * 5_000_000,
        "fine-tuned version of [a/b](x) on the " + "[](" * 1_000_000,
        "fine-tuned version of [a/b](x) on the " + " \n" * 1_000_000,
        "fine-" * 1_000_000,
        "---\n" * 1_000_000,
        "---" + " " * 5_000_000,
    ],
)
def test_hostile_readmes_take_no_time(text):
    """Five million characters: what is not linear does not end before the test is ended."""
    trainer_sentence(text)
    card_facts(text)


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.text(max_size=200),
        st.text(max_size=30).map(lambda text: f"---\n{text}\n---\n"),
        st.text("-\n: [{&*a!|>'\"", max_size=60).map(lambda text: f"---\n{text}\n---"),
    )
)
def test_any_text_is_a_readme(text):
    card = card_facts(text)
    read_row({"id": "a/b", "cardData": card})
    json.dumps(card)
    trainer_sentence(text)


def test_real_sentences():
    path = SHARED / "hub_listing_2022.jsonl"
    if not path.exists():
        pytest.skip(f"needs {path.name} in ../shared/data")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    sentences = [row["trainer_sentence"] for row in rows if row["trainer_sentence"]]
    assert len(sentences) == 192
    datasets = []
    for base, address, rest in sentences:
        read = trainer_sentence(
            f"# x\n\nThis model is a fine-tuned version of [{base}]({address}) on {rest}\nIt achieves"
        )
        assert read is not None
        assert read[0] == base
        for article in ("the ", "an "):
            if rest.startswith(article) and rest.endswith(" dataset.") and rest.count(".") == 1 and "[" not in rest:
                assert read[1] == rest.removeprefix(article).removesuffix(" dataset.").strip()
                datasets.append(read[1])
    assert len(datasets) > 170
    assert datasets.count("None") == 46
    assert datasets.count("unkown") == 10
