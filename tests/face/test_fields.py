"""The fields of an answer say what its table, JSON, CSV and data frame have."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

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
    Key,
    OnRequest,
    Result,
    Rounded,
    Rows,
    Shown,
    Spread,
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


@dataclass(frozen=True, repr=False)
class Sheet(Result):
    ROWS = "kinds"
    ROWS_BY: ClassVar[dict[str, str]] = {"kind": "kinds", "model": "items"}
    FRAME = "items"
    SHEET = ("of", "few", "all_kinds", "by_model", "found")

    items: Annotated[tuple[Item, ...], Doc("The models."), OnRequest()]
    of: Annotated[str, Doc("What the kinds are of."), After("")] = "kind"

    def named(self, key):
        return key.replace("kind", self.of)

    @property
    def kinds(self):
        return [{"kind": name} for name in "abc"]

    @property
    def few(self) -> Annotated[list[dict[str, str]], Shown("kinds", most=2, in_details=False)]:
        return self.kinds

    @property
    def all_kinds(self) -> Annotated[list[dict[str, str]], Shown("kinds"), Detail()]:
        return self.kinds

    @property
    def by_model(self) -> Annotated[tuple[Item, ...], Shown("models"), OnRequest(("model",)), If()]:
        return self.items

    @property
    def found(self) -> Annotated[dict[str, int], Spread()]:
        return {f"found by {self.of}": 1}

    @property
    def count(self) -> Annotated[int, Doc("Their number."), Key("models")]:
        return len(self.items)


@dataclass(frozen=True, eq=False, repr=False)
class Answer(Rows[Item]):
    ROWS = "items"
    TABLE = "short"
    HAS_DETAILS = True
    IN_A_BATCH = ("asked",)

    asked: Annotated[str, Doc("The question.")]
    items: Annotated[tuple[Item, ...], Doc("What was found.")]

    @property
    def short(self):
        return [{"model": one.model} for one in self.items]


@dataclass(frozen=True, eq=False, repr=False)
class Answers(Rows[Answer]):
    ROWS = "each"

    each: Annotated[tuple[Answer, ...], Doc("The answers.")]


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


def test_a_sheet_has_headings_and_an_object_computed_keys():
    sheet = Sheet((ITEM,), "sort")
    assert sheet.table() == {
        "of": "sort", "sorts, the first 2 of 3": [{"sort": "a"}, {"sort": "b"}], "found by sort": 1
    }  # fmt: skip
    assert list(sheet.table(details=True, by="model")) == ["of", "sorts", "models", "found by sort"]
    assert list(Sheet(()).table(by="model")) == ["of", "kinds, the first 2 of 3", "found by kind"]
    assert sheet.to_dict() == {"of": "sort", "found by sort": 1, "models": 1}
    assert sheet.to_dict(items=True)["items"] == [plain(ITEM)]
    with pytest.raises(TypeError, match="unexpected keyword argument 'item'"):
        sheet.to_dict(item=True)


def test_rows_are_of_the_kind_asked_for():
    sheet = Sheet((ITEM,), "sort")
    assert sheet.to_rows() == sheet.to_rows("sort") == sheet.to_rows("kind") == [{"sort": one} for one in "abc"]
    assert sheet.to_rows("model") == [plain(ITEM)]
    with pytest.raises(ValueError, match=r"unknown rows 'layer' \(choose sort or model\)"):
        sheet.to_rows("layer")
    with pytest.raises(ValueError, match="unknown rows 'model'"):
        Items("b", ()).to_rows("model")
    pytest.importorskip("pandas")
    assert list(sheet.to_df()["model"]) == ["a/b"]
    assert list(sheet.to_df("kind")["sort"]) == ["a", "b", "c"]
    assert {"model", "share"} <= set(Sheet(()).to_df().columns)


def test_the_rows_of_answers_are_those_of_each():
    one, other = Answer("x", (ITEM,)), Answer("y", (ITEM, ITEM))
    assert one.table() == [{"model": "a/b"}]
    assert one.table(details=True) == [plain(ITEM, table=True, details=True)]
    both = Answers((one, other))
    assert [row["asked"] for row in both.to_rows()] == ["x", "y", "y"]
    assert both.to_rows()[0] == {"asked": "x", **plain(ITEM)}
    assert both.table() == [{"asked": asked, "model": "a/b"} for asked in "xyy"]


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
