"""README.md: front matter and the Trainer's sentence, honest and hostile."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.hub_ids import hub_address
from indexer.sources.cards.modelcard import read_row
from indexer.sources.cards.readme import SENTENCE, card_facts, sentence_bases, sentence_datasets, trainer_sentence
from indexer.sources.cards.sentence import lacks_sentence
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
    assert (read.languages, read.licence.licence, read.dataset_names) == (("no",), "mit", ("glue",))


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


OURS = "This model is a fine-tuned version of"
LOCAL = "[/data/vllm/CodeLlama-13b](https://huggingface.co//data/vllm/CodeLlama-13b)"


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        (f"{OURS} {LOCAL} on the asm_to_cpp dataset.\nIt achieves", ("asm_to_cpp",)),
        (f"{OURS} {LINK} on the identity and the alpaca_en_demo datasets.", ("identity", "alpaca_en_demo")),
        (f"{OURS} {LOCAL} on the a_1, the b_2 and the c_3 datasets.", ("a_1", "b_2", "c_3")),
        (f"{OURS} {LOCAL} on the `identity` and the `alpaca_en_demo` datasets.", ("identity", "alpaca_en_demo")),
        (f"{OURS} [`bert`](x) on the **`glue`** dataset.", ("glue",)),
        (f"{OURS} [C:\\models\\a (1)](https://huggingface.co/C:\\models\\a (1)) on the x_1 dataset.", ("x_1",)),
        (f"{OURS} [/home/桌面/m](https://huggingface.co//home/桌面/m) on the logs_2-4w.json dataset.", ("logs_2-4w.json",)),
        (f"{OURS} [../out](https://huggingface.co/../out) on the x_1 dataset.", ("x_1",)),
        (f"{OURS} [None](https://huggingface.co/None) on the x_1 dataset.", ("x_1",)),
        (f"{OURS} `roberta-base` on the x_1 dataset.", ("x_1",)),
        (f"{OURS} BERT base on the x_1 dataset.", ("x_1",)),
        ("This model was trained from scratch on the x_1 dataset.", ("x_1",)),
        (f"{OURS} {LINK} on the [a/b](https://huggingface.co/datasets/a/b) dataset.", ("a/b",)),
        (f"{OURS} {LINK} on the MOZILLA-FOUNDATION/COMMON_VOICE_8_0 - CA dataset.", ("MOZILLA-FOUNDATION/COMMON_VOICE_8_0",)),
        (f"{OURS} {LINK} on the " + ", the ".join(f"set_{n}" for n in range(60)) + " datasets.",
         tuple(f"set_{n}" for n in range(60))),
        (f"{OURS} {LINK} on an unknown dataset.", ()),
        (f"{OURS} {LINK} on the None dataset. A fine-tuned version of {LOCAL} on the x_1 dataset.", ("x_1",)),
        (f"{OURS} {LINK} for the masses. The dataset is small.", ()),
        (f"{OURS} {LINK}.", ()),
        ("", ()),
    ],
)  # fmt: skip
def test_datasets_of_the_sentence_whatever_the_base_is(sentence, expected):
    assert sentence_datasets(f"---\nlicense: mit\n---\n\n# x\n\n{sentence}\n\n## More\n") == expected


def test_the_folder_of_an_author_is_not_an_id():
    assert hub_address("https://huggingface.co//data/vllm/X", "models") is None
    assert hub_address("https://huggingface.co/home/me/models/X", "models") is None
    assert hub_address("https://huggingface.co/./out/X", "models") is None
    assert hub_address("https://huggingface.co/datasets//data/X", "datasets") is None
    assert hub_address("https://huggingface.co/datasets/data/of/me", "datasets") is None
    for page in ("", "/", "/tree/main", "/blob/main/README.md", "?x=1", "#usage"):
        assert hub_address(f"https://huggingface.co/a/b{page}", "models") == "a/b"
    assert hub_address("https://hf.co/datasets/glue/viewer/mrpc/train", "datasets") == "glue"
    assert hub_address("https://hf.co/gpt2/tree/main", "models") == "gpt2"
    assert trainer_sentence(f"{OURS} {LOCAL} on the x_1 dataset.") is None
    assert sentence_bases(f"{OURS} {LOCAL} on the x_1 dataset.") == ["/data/vllm/CodeLlama-13b"]
    # By a link whose address is not one of the Hub's, the text counts.
    card = {"base_model": "https://huggingface.co//data/vllm/X"}
    assert read_row({"id": "a/b", "cardData": card}).bases == ()


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, True),
        ({"tags": ["trl"]}, True),
        ({"tags": ["Axolotl", 5]}, True),
        ({"tags": [], "cardData": {"tags": ["unsloth"]}}, True),
        ({"tags": []}, False),
        ({"tags": None, "cardData": {"tags": "trl"}}, False),
        ({"cardData": {"datasets": ["imdb"]}}, False),
        ({"cardData": {"datasets": ["custom"]}}, True),
        ({"tags": ["llama-factory", "dataset:imdb"]}, False),
        ({SENTENCE: []}, False),
        ({SENTENCE: "what a Hub may say"}, True),
        ({"id": "no id"}, False),
    ],
)
def test_models_whose_readme_is_worth_a_request(more, expected):
    assert lacks_sentence({"id": "a/b", "tags": ["llama-factory", "lora"], **more}) is expected


def test_the_datasets_of_a_readme_are_claims_of_their_own():
    read = read_row({"id": "a/b", SENTENCE: ["identity", "GLUE MRPC", "train.json", "", 5, "unknown"]})
    assert [(one.dataset, one.raw, one.source) for one in read.datasets] == [
        ("identity", "identity", "readme"), ("glue/mrpc", "GLUE MRPC", "readme"), (None, "train.json", "readme")
    ]  # fmt: skip
    assert read_row({"id": "a/b", SENTENCE: {"x": 1}}).datasets == ()


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
        "fine-tuned version of a b c d e " * 500_000,
        "fine-tuned version of [/a/b](x) on the " * 500_000,
        "fine-tuned version of `" * 500_000,
        "fine-" * 1_000_000,
        "---\n" * 1_000_000,
        "---" + " " * 5_000_000,
    ],
)
def test_hostile_readmes_take_no_time(text):
    """Five million characters: what is not linear does not end before the test is ended."""
    trainer_sentence(text)
    sentence_datasets(text)
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
