"""What the page is, in three sentences, and the words it uses."""

from __future__ import annotations

from query.report.markup import Html, element, strong
from query.report.section import Section, Source, Writer
from query.wording import counted

ANCHOR, TITLE = "words", "The words used here"

_WORDS = (
    (
        "base model, fine-tune",
        "A base model is a neural network trained on large amounts of general data. A fine-tune is a copy of it that "
        "somebody trained further on data of their own; its weights differ a little from the base's.",
    ),
    (
        "delta (δW)",
        "The difference between a weight matrix of the fine-tune and the same matrix of the base: what fine-tuning "
        "did to it. Such differences are close to low-rank: a few directions hold most of them.",
    ),
    (
        "representation",
        "A recipe that turns a model's deltas into one vector, a row of numbers of fixed length. “input”, the default, "
        "keeps which inputs the deltas react to; “seed” is the method that this project started from.",
    ),
    (
        "similarity",
        "The cosine of the angle between two models' vectors: 1 for the same direction, 0 for nothing in common. "
        "Only fine-tunes of the same base can be compared.",
    ),
    (
        "documented",
        "A model that names a dataset on its card, in its tags or in its reported results. Most models on the Hub name "
        "none; what is named may be wrong.",
    ),
    (
        "purity",
        "Take a model and its nearest neighbours, as many as there are other models on its dataset: purity is the "
        "share of them that were tuned on that dataset too, averaged over models. 1 is perfect.",
    ),
    (
        "chance",
        "The value that a number would have if the vectors knew nothing, for example purity with neighbours picked "
        "blindly. No number here means anything except beside its chance.",
    ),
    (
        "cross-author",
        "The same number counted among models of other authors alone. One person who uploads a hundred runs of one "
        "script makes any method look good; this takes that away.",
    ),
    (
        "interval, p",
        "The 95 % interval says how far a number could move if other authors had happened to upload; fewer than five "
        "authors cannot tell. p is the share of "
        "random shufflings that do at least as well: below 0.05 is usually taken as more than chance.",
    ),
    (
        "cluster",
        "A group of models whose vectors lie closer to each other than to the rest, found without looking at datasets. "
        "Models that belong to no group are outliers.",
    ),
    (
        "rank",
        "How many directions a matrix needs to hold a given share (here half) of its energy, the sum of its squared "
        "singular values. A small rank is a simple change.",
    ),
    (
        "copy, duplicate, unrelated",
        "A copy has the weights of the base. A duplicate has those of an earlier upload. An unrelated model has "
        "weights that contradict the base it claims. Studies leave all three out and count them.",
    ),
)


def write(source: Source) -> Section:
    """A small glossary."""
    writer = Writer(ANCHOR, TITLE)
    entries = (element("div", element("dt", strong(word)), element("dd", meaning)) for word, meaning in _WORDS)
    writer.add(element("dl", *entries, class_="glossary"))
    return writer.done()


def opening(source: Source) -> Html:
    """What was compared, how, and what the rest serves for."""
    found = source.number("SELECT count(*) FROM fine_tunes WHERE base = ?")
    indexed = source.number("SELECT count(*) FROM models WHERE base = ?")
    return element(
        "p",
        "This page describes the models on the Hugging Face Hub that were made from ", source.model(source.base),
        f" by fine-tuning: {counted(found, 'model was', 'models were')} found, and the weights of {indexed:,} could be "
        "read and compared. ",
        "Every attention and feed-forward matrix of a model was compared with the base's; what fine-tuning changed, "
        "not what the model says of itself, was condensed into one vector, and two models are called similar when "
        "their vectors point the same way. ",
        "Datasets and authors, as named on the Hub, serve only to judge the result: they never decide where a model "
        "lies.",
        class_="opening",
    )  # fmt: skip
