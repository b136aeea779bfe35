"""The picture of a map: its text, colours, shapes, fonts, and the file, which has the same bytes every time."""

from __future__ import annotations

import io
import itertools
import re
import xml.etree.ElementTree as ElementTree

import matplotlib
import numpy as np
import pytest

from indexer.errors import AtlasError
from query import Atlas
from query.contract import figures
from query.contract.figures import THEMES, Panels, draw, in_rows, label, new_figure
from query.questions.map.coloring import LEGEND, grouped
from query.questions.map.groups import are_places, group_spots, place_names, short_names
from query.questions.map.model_map import checked_map_file
from tests.atlas_builder import BASE, Model, write_atlas
from tests.halves import a_few
from tests.map.conftest import DRAWN, SVG, near, pca


def test_the_rest_shares_a_grey():
    names = [f"d{number}" for number in range(LEGEND + 3) for _ in range(30 - number)]
    groups = grouped("dataset", [*names, None, None])
    assert [group.group for group in groups.shown] == [f"d{number}" for number in range(LEGEND)]
    assert [group.models for group in groups.rest] == [30 - LEGEND, 29 - LEGEND, 28 - LEGEND]
    assert groups.codes.count(-1) == 2
    assert groups.name_of(len(names)) is None


def texts_of(figure):
    """Everything a figure says."""
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def test_the_picture_has_a_title_legend_and_labels(atlas):
    text = "\n".join(texts_of(pca(atlas).figure()))
    for words in (
        f"8 fine-tunes of {BASE}", "PCA of the vectors “input”", "1 copy of the base, 1 unrelated to the base, 1 duplicate", "imdb (4)",
        "glue/mrpc (2)", "no dataset named (1)", "adapter (2)", "principal component 1 (", " % of the variance",
    ):  # fmt: skip
        assert words in text, words


def test_what_has_no_group_can_be_seen(atlas):
    """Undocumented models are rings in the colour of the text, in front of all others, in both themes."""
    from matplotlib.collections import PathCollection
    from matplotlib.colors import to_hex

    drawn = pca(atlas)
    (position,) = [(point.x, point.y) for point in drawn.points if point.group is None]
    for name, theme in THEMES.items():
        marks = drawn.figure(name).findobj(PathCollection)
        (ring,) = [mark for mark in marks if any(np.allclose(offset, position) for offset in mark.get_offsets())]
        assert to_hex(ring.get_edgecolors()[0]).upper() == theme.ink
        assert ring.get_linewidths()[0] > 0.5
        assert ring.get_zorder() == max(mark.get_zorder() for mark in marks)


def test_one_colour_and_one_shape_say_one_thing(atlas):
    """No two entries of the legend look alike, and every mark on the picture is one of them."""
    figure = pca(atlas).figure()
    (legend,) = figure.legends
    entries = [(line.get_marker(), line.get_color(), line.get_fillstyle()) for line in legend.legend_handles]
    assert len(set(entries)) == len(entries)
    assert {marker for marker, _, _ in entries} >= {"o", "^"}
    assert all(len(set(theme.palette)) == len(theme.palette) >= LEGEND for theme in THEMES.values())


def crossed(line, box):
    """Whether a line passes through a box (x, y, width, height)."""
    along = np.linspace(*np.array(line), 100)
    return bool((np.abs(along - box[:2]) < np.array(box[2:]) / 2).all(axis=1).any())


@pytest.fixture(scope="module")
def heaps():
    """Positions and codes of three heaps, a third of the first of which lies elsewhere, and of a scattered group."""
    rng = np.random.default_rng(0)
    centres = np.array([[0, 0], [10, 0], [0, 10]])
    codes = np.repeat([0, 1, 2, 3], [30, 20, 20, 12])
    positions = np.vstack([centres[codes[:70]] + 0.3 * rng.normal(size=(70, 2)), rng.uniform(0, 10, size=(12, 2))])
    positions[:10] += 6  # a third of the first group
    return positions, codes, centres


FRAME = (-3.0, -3.0, 13.0, 13.0)


def test_all_groups_are_named_where_they_lie(heaps):
    """A name covers nothing and is nearest to its own group, or has a line to one of its points."""
    positions, codes, centres = heaps
    spots = group_spots(positions, codes.tolist(), 4)
    assert [spot.is_scattered for spot in spots] == [False, False, False, True]
    assert are_places(spots)
    for spot, centre in zip(spots, centres, strict=False):
        assert np.hypot(spot.x - centre[0], spot.y - centre[1]) < 0.3
    names = place_names(positions, codes.tolist(), spots, [(2.0, 0.5)] * 4, FRAME, 0.05, 0.05)
    assert all(names)
    for group, name in enumerate(names):
        distances = np.hypot(*np.maximum(np.abs(positions - (name.x, name.y)) - (1.0, 0.25), 0).T)
        assert distances.min() >= 0.1
        assert FRAME[0] <= name.x - 1 and name.x + 1 <= FRAME[2]  # noqa: PT018
        if name.line is None:
            assert codes[distances.argmin()] == group
            continue
        start, end = name.line
        assert crossed([(name.x, name.y), start], (name.x, name.y, 2.0, 0.5))
        assert codes[np.hypot(*(positions - end).T).argmin()] == group
        assert not any(crossed(name.line, (other.x, other.y, 2.0, 0.5)) for other in names if other is not name)
    assert names[3].line is not None
    assert names[0].line is None


def test_all_groups_are_named_or_none(heaps):
    """None if one name finds no room in a crowd, and none of a map on which most groups are scattered."""
    positions, codes, _ = heaps
    rng = np.random.default_rng(1)
    spots = group_spots(positions, codes.tolist(), 4)
    crowd = np.vstack([positions, rng.uniform(-3, 13, size=(4000, 2))])
    everywhere = [*codes.tolist(), *[-1] * 4000]
    assert place_names(crowd, everywhere, spots, [(2.0, 0.5)] * 4, FRAME, 0.05, 0.05) == [None] * 4
    scattered = group_spots(crowd, rng.integers(0, 5, len(crowd)).tolist(), 5)
    assert not are_places(scattered)
    (single,) = group_spots(positions[:1], [0], 1)
    assert (single.x, single.y, single.radius) == (*positions[0], 0.0)
    assert group_spots(positions[:1], [0], 2)[1] is None


@pytest.mark.parametrize("seed", range(4))
def test_few_models_are_all_named(seed):
    """Twenty-nine models in four tight heaps: each has its name, none covers another, and hardly a line crosses one."""
    rng = np.random.default_rng(seed)
    points = rng.uniform(200, 800, size=(4, 2))[rng.integers(0, 4, 29)] + 18 * rng.normal(size=(29, 2))
    spots = group_spots(points, range(29), 29)
    sizes = [(float(width), 12.0) for width in rng.uniform(40, 130, 29)]
    names = place_names(points, range(29), spots, sizes, (0, 0, 1000, 1000), 4, 5)
    assert all(names)
    boxes = [(name.x, name.y, *size) for name, size in zip(names, sizes, strict=True)]
    through = 0
    for (one, (x, y, width, height)), (_, (a, b, w, h)) in itertools.permutations(zip(names, boxes, strict=True), 2):
        assert abs(x - a) >= (width + w) / 2 or abs(y - b) >= (height + h) / 2
        through += one.line is not None and crossed(one.line, (a, b, w, h))
    assert through <= 1


def test_short_names_leave_out_what_all_share():
    names = ["ann/bert-base-ft-mrpc", "bob/bert-base-ft-imdb", "eve/BERT-base_ft-sst", "ann/ft-qqp"]
    assert short_names(names, "google/bert-base") == ["mrpc", "imdb", "ft-sst"[3:], "qqp"]
    assert short_names(["ann/one", "bob/one", "bob/other"], "org/base") == ["ann/one", "bob/one", "other"]
    assert short_names(["ann/base"], "org/base") == ["base"]
    assert short_names(["/home/me/run-1", "/home/me/run-12"], "org/base") == ["1", "12"]


@pytest.mark.slow
def test_few_points_have_names_and_more_have_those_of_their_groups(atlas, tmp_path):
    """The names of eight models; with thirty, those of their data sets; without data sets, of central models."""
    drawn = pca(atlas)
    written = texts_of(drawn.figure())
    assert set(short_names([point.model for point in drawn.points], BASE)) <= set(written)
    models = [Model(f"a{number % 4}/m{number}", near(number % 3), (f"set{number % 3}",)) for number in range(33)]
    with Atlas(write_atlas(tmp_path / "many", models)) as many:
        written = texts_of(many.map(method="pca").figure())
    assert {"set0", "set1", "set2"} <= set(written)
    assert "m7" not in written
    silent = [Model(model.model, model.vector) for model in models]
    with Atlas(write_atlas(tmp_path / "silent", silent)) as nameless:
        drawn = nameless.map(method="pca")
    assert drawn.color == "cluster"
    assert all(re.fullmatch(r"\d: around m\d+", group.group) for group in drawn.groups)
    assert {group.group for group in drawn.groups} <= set(texts_of(drawn.figure()))


def test_every_point_is_drawn_once_in_its_colour_and_shape(atlas):
    from matplotlib.collections import PathCollection
    from matplotlib.colors import to_hex
    from matplotlib.markers import MarkerStyle

    drawn = pca(atlas)
    theme = THEMES["light"]
    shapes = {"o": "finetune", "^": "adapter"}
    sizes = {
        shape: len(MarkerStyle(shape).get_path().transformed(MarkerStyle(shape).get_transform())) for shape in shapes
    }
    assert len(set(sizes.values())) == 2
    drawn_as = {}
    for marks in drawn.figure().findobj(PathCollection):
        (path,) = marks.get_paths()
        relation = next(shapes[shape] for shape, size in sizes.items() if size == len(path))
        colours = marks.get_facecolors()
        for row, position in enumerate(marks.get_offsets()):
            drawn_as[tuple(np.round(position, 6))] = (relation, to_hex(colours[row % len(colours)]).upper())
    ranks = {"imdb": 0, "glue/mrpc": 1, "squad": 2}
    for point in drawn.points:
        colour = theme.background if point.group is None else theme.palette[ranks[point.group]]  # a ring
        assert drawn_as.pop((round(point.x, 6), round(point.y, 6))) == (point.relation, colour)
    assert not drawn_as


# Machado, Oliveira & Fernandes (2009), severity 1: what protanopes, deuteranopes and tritanopes see, in linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def lab_of(colour, vision):
    """CIELAB (D65) of a hex colour as a kind of vision sees it."""
    stored = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(stored <= 0.04045, stored / 12.92, ((stored + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(vision) @ linear, 0, 1)
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
    xyz = np.array(to_xyz) @ seen / [0.95047, 1, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
@pytest.mark.parametrize("vision", VISION)
def test_colours_are_distinguished_by_everyone(theme, vision):
    """Of groups, of all others, and of text, which is the colour of models without a group."""
    named = (*theme.palette, theme.rest, theme.ink, theme.background)
    colours = {colour: lab_of(colour, VISION[vision]) for colour in named}
    for first, second in itertools.combinations(colours, 2):
        assert np.linalg.norm(colours[first] - colours[second]) > 19, (first, second)


def test_a_group_has_one_colour_in_both_themes():
    assert THEMES["light"].palette == THEMES["dark"].palette
    assert THEMES["light"].rest == THEMES["dark"].rest


def contrast(first, second):
    """By WCAG 2.2: (lighter + 0.05) / (darker + 0.05), of relative luminances."""

    def luminance(colour):
        stored = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
        return np.where(stored <= 0.04045, stored / 12.92, ((stored + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]

    darker, lighter = sorted([luminance(first), luminance(second)])
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_every_mark_stands_out_from_the_background(theme):
    """At least 3 : 1 for what is drawn, 7 : 1 for text (1.4.11 and 1.4.6)."""
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    for colour in (*theme.palette, theme.rest, *theme.scale):
        assert contrast(colour, theme.background) >= 3, colour
    assert contrast(theme.ink, theme.background) >= 7


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_a_scale_rises_evenly_in_lightness(theme):
    lightness = [lab_of(colour, VISION["normal"])[0] for colour in theme.scale]
    assert min(np.diff(lightness)) > 5


# ---- files ----


@pytest.mark.slow
@pytest.mark.parametrize("suffix", DRAWN)
@pytest.mark.parametrize("color", a_few(["dataset", "downloads"], 1))
def test_the_same_map_gives_the_same_file(atlas, tmp_path, suffix, color):
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix.upper()}"
    pca(atlas, color=color).write(first)
    pca(atlas, color=color).write(second)
    assert first.read_bytes().startswith(DRAWN[suffix])
    assert first.read_bytes() == second.read_bytes()


def test_an_svg_with_many_points_holds_a_picture_of_them(atlas, monkeypatch):
    from query.questions.map import picture

    assert b"<image" not in draw(pca(atlas).figure(), ".svg")
    monkeypatch.setattr(picture, "_RASTERISED", 8)
    assert b"<image" in draw(pca(atlas).figure(), ".svg")


@pytest.mark.parametrize("name", ["map.gif", "map", "map.html.zip"])
def test_another_suffix_is_refused_before_any_work(name):
    with pytest.raises(AtlasError, match=r"\.png, \.svg, \.pdf, \.html"):
        checked_map_file(name)
    with pytest.raises(AtlasError, match="folder"):
        checked_map_file("/nowhere/map.png")


HOSTILE = [
    "<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", "$\\frac{1}{0}$", "a$b", "\u202egnp.exe",
    "line\nbreak", "\x1b[31mred", "long" * 100, "日本語", "%s {} {{data}}", "\u2028", "<!--", "&amp;", "'\"", "\\", "_", "",
]  # fmt: skip


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    models = [
        Model(f"{text}/{number}", near(number % 3), (text,) if text else (), author=text, licence=text)
        for number, text in enumerate(HOSTILE)
    ]
    with Atlas(write_atlas(tmp_path_factory.mktemp("hostile") / "atlas", models)) as opened:
        yield opened


@pytest.mark.parametrize("color", a_few(["dataset", "author", "model"], 1))
def test_hostile_names_in_a_picture_are_text(hostile, color):
    drawn = pca(hostile, color=color)
    for suffix in (".png", ".pdf"):
        draw(drawn.figure(), suffix)
    svg = ElementTree.fromstring(draw(drawn.figure(), ".svg"))
    assert {element.tag.removeprefix(SVG) for element in svg.iter()} <= {
        "svg", "metadata", "RDF", "Work", "type", "format", "creator", "Agent", "title", "date", "defs", "style", "g",
        "path", "use", "text", "clipPath", "rect", "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}RDF",
        *(element.tag for element in svg.iter() if "purl.org" in element.tag or "creativecommons" in element.tag),
    }  # fmt: skip
    written = "".join(svg.itertext())
    assert "\u202e" not in written
    assert "\x1b" not in written
    if color == "model":
        assert "$\\frac{1}{0}$/2 (1)" in written


def test_a_name_is_shown_whole_or_cut_in_the_middle():
    assert label("glue/mrpc") == "glue/mrpc"
    assert label("$x$") == r"\$x\$"
    cut = label("a" * 50 + "b" * 50, 21)
    assert len(cut) == 21
    assert re.fullmatch("a+…b+", cut)


# ---- small atlases, and the command ----


@pytest.mark.parametrize(
    ("count", "most", "counts"), [(1, 4, [1]), (4, 4, [4]), (5, 4, [4, 1]), (7, 3, [3, 3, 1]), (2, 6, [2])]
)
def test_panels_fill_rows_from_the_top(count, most, counts):
    assert in_rows(count, most) == counts
    panels = Panels(counts, (1.5, 1.0), "dark", margin=(0.5, 0.25), least=2.5)
    assert [len(row) for row in panels.rows] == counts
    assert len(list(panels)) == count
    width, height = max(1.5 * max(counts) + 0.5, 2.5), len(counts) + 0.25
    assert panels.figure.get_size_inches() == pytest.approx([width, height])
    assert sum(axes.axison for axes in panels.figure.axes) == count  # the rest of the grid is empty
    assert len(panels.lowest) == max(counts)
    assert set(panels.lowest) == set(list(panels)[-max(counts) :])
    panels.title(panels.rows[0][0], "a name", 7)
    assert panels.rows[0][0].get_title("left") == "a name"
    assert panels.rows[0][0].get_facecolor() == matplotlib.colors.to_rgba(THEMES["dark"].background)


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
    with_font = by_matplotlib(drawn(["sans-serif", "STIXGeneral"]))
    assert boxes != with_font
    monkeypatch.setattr(figures, "FURTHER_FONTS", ("No Such Font", "STIXGeneral"))
    assert draw(drawn(), ".png") == with_font
    monkeypatch.setattr(figures, "FURTHER_FONTS", ("No Such Font",))
    assert draw(drawn(), ".png") == boxes


def test_a_page_names_the_further_font_too(monkeypatch):
    monkeypatch.setattr(figures, "FURTHER_FONTS", ("STIXGeneral",))
    svg = draw(drawn(), ".svg").decode()
    assert STRANGE in svg
    assert "STIXGeneral" in svg
    assert draw(drawn(), ".pdf").startswith(b"%PDF")
