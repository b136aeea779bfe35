"""The fields of an answer say what its table, JSON, CSV and data frame have."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import pytest

from query.contract.columns import ModelId, Notes
from query.contract.glossary import documented
from query.contract.results import (
    After,
    Data,
    Detail,
    Doc,
    Format,
    Hidden,
    If,
    Result,
    Rounded,
    Rows,
    Shown,
    columns,
    plain,
)
from tests.conftest import ROOT

if TYPE_CHECKING:
    from nowhere import OnlyForTypeCheckers


@dataclass(frozen=True)
class Item:
    model: ModelId
    share: Annotated[float, Doc("Share."), Format(lambda share, of: f"{share:.0%} of {of}", "size")]
    size: Annotated[int, Doc("Size."), Data()]
    score: Annotated[float, Doc("Score."), Rounded(2), Detail()] = 0.125
    reason: Annotated[str | None, Doc("Why."), If()] = None
    few: Annotated[int, Doc("Few."), If("is_few", in_tables=True)] = 0
    is_few: Annotated[bool, Hidden()] = False
    class_: Annotated[str, Doc("A word that Python reserves."), After("model")] = "none"
    odd: tuple[OnlyForTypeCheckers, ...] = ()

    @property
    def double(self) -> Annotated[int, Doc("Twice the size."), After("size")]:
        """A key."""
        return 2 * self.size

    @property
    def triple(self) -> int:
        """No key."""
        return 3 * self.size


@dataclass(frozen=True, eq=False, repr=False)
class Items(Rows[Item]):
    ROWS = "items"
    EACH_ROW = ("base",)

    base: Annotated[str, Doc("Base."), Detail()]
    items: Annotated[tuple[Item, ...], Doc("The items.")]
    notes: Notes = ()


@dataclass(frozen=True, repr=False)
class Whole(Result):
    best: Annotated[Item, Doc("The best.")]
    others: Annotated[tuple[Item, ...], Doc("The others."), Shown()] = ()
    notes: Notes = ()


ITEM = Item("a/b", 0.5, 4)


def test_keys_are_fields_and_documented_properties_in_order():
    assert [one.key for one in columns(Item)] == [
        "model", "class", "share", "size", "double", "score", "reason", "few", "odd",
    ]  # fmt: skip
    assert Items.COLUMNS == ("model", "class", "share", "size", "double", "score", "few", "odd", "base")
    assert {one.key: one.doc for one in columns(Item)}["double"] == "Twice the size."
    assert documented([Items])["share"] == "Share."
    assert Items.has_details()


def test_programs_get_every_key_and_tables_what_a_person_reads():
    assert plain(ITEM) == {
        "model": "a/b", "class": "none", "share": 0.5, "size": 4, "double": 8, "score": 0.12, "few": 0, "odd": [],
    }  # fmt: skip
    found = Items("b", (ITEM, Item("c/d", 1.0, 2, reason="it is", is_few=True, few=0)))
    assert [row["base"] for row in found.to_rows()] == ["b", "b"]
    assert found.to_rows()[1]["reason"] == "it is"
    assert found.table()[0] == {"model": "a/b", "class": "none", "share": "50% of 4", "double": 8, "odd": []}
    assert found.table()[1]["few"] == 0
    assert {"score", "base"} <= set(found.table(details=True)[0])
    assert list(found.to_dict()) == ["base", "items", "notes"]
    assert found.to_dict()["items"] == [plain(one) for one in found]
    assert found == [*found]
    assert not Items("b", ())


def test_an_object_has_the_rows_of_its_fields():
    whole = Whole(ITEM, (ITEM,), ("A note.",))
    assert whole.to_dict() == {"best": plain(ITEM), "notes": ["A note."]}
    shown = whole.table()
    assert list(shown) == ["best", "others"]
    assert shown["others"][0]["share"] == "50% of 4"


def test_a_data_frame_has_the_columns_without_rows():
    pytest.importorskip("pandas")
    assert tuple(Items("b", ()).to_df().columns) == Items.COLUMNS


def test_no_meaning_is_written_twice():
    """A field that several classes have is described by one name: of ``query.contract.columns``, or of the module."""
    written = Counter(
        call.args[0].value
        for path in (ROOT / "query").rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and getattr(call.func, "id", "") == "Doc"
        and isinstance(call.args[0], ast.Constant)
    )
    assert len(written) > 200
    assert [text for text, count in written.items() if count > 1] == []
