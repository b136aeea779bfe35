"""What the page is, in three sentences, and the words it uses."""

from __future__ import annotations

from query.glossary import words
from query.report.markup import Html, element, strong
from query.report.section import Section, Source, Writer
from query.wording import counted

ANCHOR, TITLE = "words", "The words used here"


def write(source: Source) -> Section:
    """A small glossary."""
    writer = Writer(ANCHOR, TITLE)
    entries = (element("div", element("dt", strong(word)), element("dd", meaning)) for word, meaning in words().items())
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
