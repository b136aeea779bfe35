"""How pictures are written: names in scripts that the usual font lacks, and the same bytes every time."""

from __future__ import annotations

import io

import matplotlib
import pytest

from query import figures
from query.figures import draw, new_figure

STRANGE = "ᶁᶄᶊ"  # in STIXGeneral, which comes with matplotlib, and not in DejaVu Sans


def drawn(family=None):
    figure, axes = new_figure(2, 1)
    axes.set_title(f"a name {STRANGE}", **({"family": family} if family else {}))
    return figure


def by_matplotlib(figure):
    target = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "x"}):
        figure.savefig(target, format="png", metadata={"Software": None})
    return target.getvalue()


@pytest.mark.filterwarnings("ignore:Glyph")
def test_a_name_takes_from_an_installed_font_what_its_own_lacks(monkeypatch):
    boxes = by_matplotlib(drawn())
    whole = by_matplotlib(drawn(["sans-serif", "STIXGeneral"]))
    assert boxes != whole
    monkeypatch.setattr(figures, "FURTHER_FONTS", ("No Such Font", "STIXGeneral"))
    assert draw(drawn(), ".png") == whole
    monkeypatch.setattr(figures, "FURTHER_FONTS", ("No Such Font",))
    assert draw(drawn(), ".png") == boxes


def test_a_page_names_the_further_font_too(monkeypatch):
    monkeypatch.setattr(figures, "FURTHER_FONTS", ("STIXGeneral",))
    svg = draw(drawn(), ".svg").decode()
    assert STRANGE in svg
    assert "STIXGeneral" in svg
    assert draw(drawn(), ".pdf").startswith(b"%PDF")
