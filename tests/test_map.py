"""Maps of planted atlases: who is on them, what colours them, the pictures, and the command."""

from __future__ import annotations

import datetime
import itertools
import json
import math
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import duckdb
import numpy as np
import pytest

from indexer.errors import AtlasError
from query import Atlas
from query.figures import THEMES, draw, label
from query.map.coloring import LEGEND, cluster_name, grouped, scaled
from query.map.heaps import heaps, room_for_names
from query.map.map import checked_map_file, model_map
from tests.patience import PATIENCE
from tests.planted_atlas import BASE, Planted, plant_atlas

RNG = np.random.default_rng(0)
CENTRES = RNG.normal(size=(3, 32))
SVG = "{http://www.w3.org/2000/svg}"


def near(group, scale=0.4):
    return CENTRES[group] + scale * RNG.normal(size=32)


def time(day):
    return datetime.datetime(2024, 1, day)


MODELS = [
    Planted("ann/one", near(0), ("glue", "glue/mrpc"), downloads=5, licence="mit", created=time(1), languages=("en",)),
    Planted(
        "ann/two", near(0), ("glue/mrpc",), downloads=50_000, licence="mit", created=time(3), languages=("en", "fr")
    ),
    Planted("bob/three", near(0), ("glue/mrpc", "imdb"), downloads=0, gated="auto", relation="adapter", label_count=2),
    Planted("bob/four", near(1), ("imdb",), downloads=120, licence="apache-2.0", partly_frozen=True),
    Planted("bob/five", near(1), ("imdb",), downloads=None, created=time(9)),
    Planted("cyd/six", near(1), (), downloads=7, licence="mit"),
    Planted("cyd/seven", near(2), ("squad",), downloads=3, relation="adapter"),
    Planted("dan/eight", near(2), ("imdb",), downloads=1),
    Planted("dan/copy", np.zeros(32), ("squad",)),
    Planted("dan/stranger", RNG.normal(size=32), ("squad",), unrelated=True),
    Planted("eve/one-again", CENTRES[0], ("snli",), duplicate_of=1),
]
KEPT = [model.model for model in MODELS[:8]]
DRAWN = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF", ".html": b"<!doctype html>", ".parquet": b"PAR1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return plant_atlas(tmp_path_factory.mktemp("map") / "atlas", MODELS)


@pytest.fixture(scope="module")
def atlas(folder):
    with Atlas(folder) as opened:
        yield opened


def pca(atlas, **options):
    return model_map(atlas, BASE, **({"method": "pca"} | options))


def groups_of(drawn):
    return {group.group: group.models for group in drawn.coloring.groups}


def test_who_is_on_the_map(atlas):
    drawn = pca(atlas)
    assert [point.model for point in drawn.points] == KEPT
    facts = drawn.to_dict()
    assert facts["models"] == 8
    assert facts["left_out"] == {"copies": 1, "unrelated": 1, "duplicates": 1}
    assert facts["base"] == BASE
    assert (facts["method"], facts["color"], facts["seed"]) == ("pca", "dataset", 0)
    assert facts["explained_variance"] == list(drawn.explained_variance)
    assert "Adapters (2)" in facts["notes"][0]
    json.dumps(facts)
    assert drawn.points[0].datasets == ("glue", "glue/mrpc", "snli")  # those of its duplicate too


def test_groups_are_those_counted_by_hand(atlas):
    drawn = pca(atlas)
    # The parent glue is not counted beside its subtask; of several the one that most models name: imdb (4) before
    # glue/mrpc (3) before snli and squad (1).
    assert groups_of(drawn) == {"imdb": 4, "glue/mrpc": 2, "squad": 1}
    assert [point.group for point in drawn.points] == [
        "glue/mrpc", "glue/mrpc", "imdb", "imdb", "imdb", None, "squad", "imdb",
    ]  # fmt: skip
    assert drawn.to_dict()["unknown"] == 1
    assert groups_of(pca(atlas, color="author")) == {"bob": 3, "ann": 2, "cyd": 2, "dan": 1}
    assert groups_of(pca(atlas, color="relation")) == {"finetune": 6, "adapter": 2}
    licences = pca(atlas, color="licence")
    assert groups_of(licences) == {"mit": 3, "apache-2.0": 1}
    assert licences.coloring.codes.count(-1) == 4
    assert groups_of(pca(atlas, color="is_partly_frozen")) == {"no": 7, "yes": 1}
    assert groups_of(pca(atlas, color="languages")) == {"en": 1, "en, fr": 1}


def test_numbers_are_on_a_scale(atlas):
    drawn = pca(atlas, color="downloads")
    assert drawn.to_dict()["scale"] == {"low": 1.0, "high": 50_000.0, "kind": "log"}
    assert [point.value for point in drawn.points] == [5, 50_000, 0, 120, None, 7, 3, 1]
    assert drawn.to_dict()["unknown"] == 1
    created = pca(atlas, color="created")
    assert created.coloring.kind == "time"
    assert created.coloring.high - created.coloring.low == 8 * 86_400
    assert pca(atlas, color="label_count").coloring.kind == "linear"


@pytest.mark.parametrize(
    ("values", "kind", "low", "high"),
    [
        ([1, 2, 50], "linear", 1, 50),
        ([0, 1, 100], "log", 1, 100),
        ([-1, 1, 1e6], "linear", -1, 1e6),
        ([0.001, 0.5], "log", 0.001, 0.5),
        ([0, 0], "linear", 0, 0),
        ([None, math.nan, math.inf, 3], "linear", 3, 3),
        ([None], "linear", 0, 0),
    ],
)
def test_the_scale_suits_the_numbers(values, kind, low, high):
    scale = scaled("x", values)
    assert (scale.kind, scale.low, scale.high) == (kind, low, high)
    assert all(value is None or math.isfinite(value) for value in scale.values)


def test_an_unknown_column_names_those_there_are(atlas):
    with pytest.raises(AtlasError, match=r"'flavour'.*dataset, author, cluster.*downloads.*licence"):
        pca(atlas, color="flavour")
    with pytest.raises(AtlasError, match="weight_files"):  # a list of structs is nothing to colour by
        pca(atlas, color="weight_files")
    with pytest.raises(AtlasError):
        pca(atlas, color='downloads" FROM models; --')


@pytest.mark.parametrize(
    ("datasets", "name"),
    [
        ({"glue/mrpc": 3, "imdb": 1}, "4: glue/mrpc"),
        ({"a": 2, "b": 2, "c": 1}, "4: mixed, a and b"),
        ({}, "4: no dataset named"),
    ],
)
def test_a_cluster_is_called_by_what_it_holds(datasets, name):
    from query.clusters.members import Cluster

    documented = sum(datasets.values())
    share = max(datasets.values()) / documented if datasets else None
    cluster = Cluster(4, 9, datasets, {}, "a/b", None, documented, next(iter(datasets), None), share, (), {})
    assert cluster_name(cluster) == name


def test_clusters_are_those_of_the_clustering(atlas):
    from query.clusters.clusters import clusters
    from query.population import read_population

    drawn = pca(atlas, color="cluster")
    found = clusters(read_population(atlas, BASE), seed=0)
    assert found.clusters
    for point in drawn.points:
        number = found.labels[point.model_id]
        assert (point.group or "-1").partition(":")[0] == str(number)
    for cluster in found.clusters:
        (name,) = {point.group for point in drawn.points if found.labels[point.model_id] == cluster.cluster}
        assert next(iter(cluster.datasets), "no dataset named") in name
    assert drawn.coloring.none == "in no cluster"


def test_neighbours_are_the_nearest_on_the_map(atlas):
    drawn = pca(atlas)
    vectors = np.array([model.vector for model in MODELS[:8]])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for row, found in enumerate(drawn.neighbours):
        cosines = vectors @ vectors[row]
        expected = sorted((other for other in range(8) if other != row), key=lambda other: -cosines[other])
        assert [near.place for near in found] == expected
        assert [near.cosine for near in found] == pytest.approx(cosines[expected], abs=1e-5)


def test_no_more_neighbours_than_a_page_can_show(tmp_path):
    with Atlas(plant_atlas(tmp_path / "atlas", [Planted(f"a/{n}", near(n % 2)) for n in range(12)])) as many:
        assert {len(found) for found in pca(many).neighbours} == {8}


def test_rows_of_the_data_frame(atlas):
    frame = pca(atlas, color="downloads").to_df()
    assert list(frame.columns[:4]) == ["model_id", "model", "author", "relation"]
    assert {"datasets", "x", "y", "group", "value", "downloads"} <= set(frame.columns)
    assert list(frame.model) == KEPT
    assert frame.x.std() > frame.y.std()


# ---- the legend ----


def test_the_rest_shares_a_grey():
    names = [f"d{number}" for number in range(LEGEND + 3) for _ in range(30 - number)]
    groups = grouped("dataset", [*names, None, None])
    assert [group.group for group in groups.shown] == [f"d{number}" for number in range(LEGEND)]
    assert [group.models for group in groups.rest] == [30 - LEGEND, 29 - LEGEND, 28 - LEGEND]
    assert groups.codes.count(-1) == 2
    assert groups.of(len(names)) is None


def texts_of(figure):
    """Everything a figure says."""
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def test_the_picture_says_what_it_shows(atlas):
    said = "\n".join(texts_of(pca(atlas).figure()))
    for words in (
        f"8 fine-tunes of {BASE}", "PCA of the vectors “input”", "1 copy of the base, 1 unrelated to the base, 1 duplicate", "imdb (4)",
        "glue/mrpc (2)", "no dataset named (1)", "adapter (2)", "principal component 1 (", " % of the variance",
    ):  # fmt: skip
        assert words in said, words


def test_what_has_no_group_can_be_seen(atlas):
    """Undocumented models are rings in the colour of the text, in front of all others, in both themes."""
    from matplotlib.collections import PathCollection
    from matplotlib.colors import to_hex

    drawn = pca(atlas)
    (place,) = [(point.x, point.y) for point in drawn.points if point.group is None]
    for name, theme in THEMES.items():
        marks = drawn.figure(name).findobj(PathCollection)
        (ring,) = [one for one in marks if any(np.allclose(at, place) for at in one.get_offsets())]
        assert to_hex(ring.get_edgecolors()[0]).upper() == theme.ink
        assert ring.get_linewidths()[0] > 0.5
        assert ring.get_zorder() == max(one.get_zorder() for one in marks)


def test_one_colour_and_one_shape_say_one_thing(atlas):
    """No two entries of the legend look alike, and every mark on the picture is one of them."""
    figure = pca(atlas).figure()
    (legend,) = figure.legends
    entries = [(line.get_marker(), line.get_color(), line.get_fillstyle()) for line in legend.legend_handles]
    assert len(set(entries)) == len(entries)
    assert {marker for marker, _, _ in entries} >= {"o", "^"}
    assert all(len(set(theme.palette)) == len(theme.palette) >= LEGEND for theme in THEMES.values())


def test_groups_are_named_where_they_lie():
    """A heap is found though a third of the group lies elsewhere, and its name covers nothing and is nearest to it."""
    rng = np.random.default_rng(0)
    centres = np.array([[0, 0], [10, 0], [0, 10]])
    codes = np.repeat([0, 1, 2, 3], [30, 20, 20, 12])
    places = np.vstack([centres[codes[:70]] + 0.3 * rng.normal(size=(70, 2)), rng.uniform(0, 10, size=(12, 2))])
    places[:10] += 6  # a third of the first group
    found = heaps(places, codes.tolist(), 4)
    assert found[3] is None  # scattered over the whole map
    for heap, centre in zip(found, centres, strict=False):
        assert np.hypot(heap.x - centre[0], heap.y - centre[1]) < 0.3
    frame = (-3.0, -3.0, 13.0, 13.0)
    names = room_for_names(places, codes.tolist(), found, [(2.0, 0.5)] * 4, frame, 0.1)
    assert names[3] is None
    assert all(names[:3])
    for group, (x, y) in enumerate(names[:3]):
        away = np.hypot(*np.maximum(np.abs(places - (x, y)) - (1.0, 0.25), 0).T)
        assert away.min() >= 0.1
        assert codes[away.argmin()] == group
        assert frame[0] <= x - 1 and x + 1 <= frame[2]  # noqa: PT018
    crowd = np.vstack([places, rng.uniform(-3, 13, size=(4000, 2))])
    everywhere = [*codes.tolist(), *[-1] * 4000]
    assert room_for_names(crowd, everywhere, found, [(2.0, 0.5)] * 4, frame, 0.1) == [None] * 4
    assert heaps(places[:1], [0], 1) == (None,)


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
    found = {}
    for marks in drawn.figure().findobj(PathCollection):
        (path,) = marks.get_paths()
        relation = next(shapes[shape] for shape, size in sizes.items() if size == len(path))
        colours = marks.get_facecolors()
        for row, place in enumerate(marks.get_offsets()):
            found[tuple(np.round(place, 6))] = (relation, to_hex(colours[row % len(colours)]).upper())
    ranks = {"imdb": 0, "glue/mrpc": 1, "squad": 2}
    for point in drawn.points:
        colour = theme.background if point.group is None else theme.palette[ranks[point.group]]  # a ring
        assert found.pop((round(point.x, 6), round(point.y, 6))) == (point.relation, colour)
    assert not found


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
def test_colours_are_told_apart_by_everyone(theme, vision):
    colours = {colour: lab_of(colour, VISION[vision]) for colour in (*theme.palette, theme.rest, theme.background)}
    for first, second in itertools.combinations(colours, 2):
        assert np.linalg.norm(colours[first] - colours[second]) > 19, (first, second)


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_a_scale_rises_evenly_in_lightness(theme):
    lightness = [lab_of(colour, VISION["normal"])[0] for colour in theme.scale]
    assert min(np.diff(lightness)) > 5


# ---- files ----


@pytest.mark.parametrize("suffix", DRAWN)
@pytest.mark.parametrize("color", ["dataset", "downloads"])
def test_the_same_map_gives_the_same_file(atlas, tmp_path, suffix, color):
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix.upper()}"
    pca(atlas, color=color).write(first)
    pca(atlas, color=color).write(second)
    assert first.read_bytes().startswith(DRAWN[suffix])
    assert first.read_bytes() == second.read_bytes()


def test_an_svg_with_many_points_holds_a_picture_of_them(atlas, monkeypatch):
    from query.map import picture

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
        Planted(f"{text}/{number}", near(number % 3), (text,) if text else (), author=text, licence=text)
        for number, text in enumerate(HOSTILE)
    ]
    with Atlas(plant_atlas(tmp_path_factory.mktemp("hostile") / "atlas", models)) as opened:
        yield opened


@pytest.mark.parametrize("color", ["dataset", "author", "model"])
def test_hostile_names_in_a_picture_are_text(hostile, color):
    drawn = pca(hostile, color=color)
    for suffix in (".png", ".pdf"):
        draw(drawn.figure(), suffix)
    said = ElementTree.fromstring(draw(drawn.figure(), ".svg"))
    assert {element.tag.removeprefix(SVG) for element in said.iter()} <= {
        "svg", "metadata", "RDF", "Work", "type", "format", "creator", "Agent", "title", "date", "defs", "style", "g",
        "path", "use", "text", "clipPath", "rect", "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}RDF",
        *(element.tag for element in said.iter() if "purl.org" in element.tag or "creativecommons" in element.tag),
    }  # fmt: skip
    written = "".join(said.itertext())
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


@pytest.mark.parametrize("count", [1, 2, 5])
def test_small_atlases(tmp_path, count):
    with Atlas(plant_atlas(tmp_path / "atlas", [Planted(f"a/{n}", near(n % 3)) for n in range(count)])) as small:
        assert pca(small).notes == ()
        for color in ("dataset", "downloads", "created"):
            drawn = model_map(small, color=color)
            facts = drawn.to_dict()
            assert (facts["models"], facts["method"]) == (count, "pca")
            assert "places are those of a PCA" in facts["notes"][0]
            draw(drawn.figure(), ".svg")
            drawn.html()


def test_an_atlas_of_copies_has_no_map(tmp_path):
    with (
        Atlas(plant_atlas(tmp_path / "atlas", [Planted("a/b", np.zeros(32))])) as empty,
        pytest.raises(AtlasError, match=r"no model of org/base to place \(left out: 1 copy of the base\)"),
    ):
        model_map(empty)


def query(folder, *words):
    return subprocess.run(
        [sys.executable, "-m", "query", *words, "--atlas", str(folder)], capture_output=True, text=True, check=False,
        timeout=PATIENCE,
    )  # fmt: skip


def test_a_table_for_other_viewers(folder, tmp_path):
    """Read back by DuckDB: rows are numbered from 0, and neighbours are rows, the nearest first."""
    ran = query(folder, "map", "--method", "pca", "--color", "cluster", "--out", str(tmp_path / "my map.parquet"))
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.splitlines()[-1] == (
        f"to look at it: embedding-atlas '{tmp_path}/my map.parquet' --text model --x x --y y --neighbors neighbors"
    )
    rows = duckdb.sql(f"SELECT * FROM '{tmp_path / 'my map.parquet'}'")
    types = dict(zip(rows.columns, map(str, rows.types), strict=True))
    assert types["neighbors"] == "STRUCT(ids BIGINT[], distances DOUBLE[])"
    assert {"cluster", "created", "x", "y"} < types.keys()
    table = [dict(zip(rows.columns, row, strict=True)) for row in rows.fetchall()]
    assert [row["id"] for row in table] == list(range(8))
    assert [row["model"] for row in table] == KEPT
    assert table[0]["datasets"] == ["glue", "glue/mrpc", "snli"]  # with those of its repeat
    assert table[0]["created"] == time(1)
    assert table[4]["downloads"] is None
    with Atlas(folder) as atlas:
        for row in table:
            known = [one for one in atlas.similar(row["model"], k=10) if one.model in KEPT]
            assert [table[place]["model"] for place in row["neighbors"]["ids"]] == [one.model for one in known]
            assert row["neighbors"]["distances"] == pytest.approx([1 - one.similarity for one in known], abs=1e-6)


def test_neighbours_have_backgrounds_and_models_parents(folder, tmp_path):
    """On the map as ``similar`` and the table of lineage tell them."""
    other = tmp_path / "atlas"
    shutil.copytree(folder, other)
    with duckdb.connect(str(other / "atlas.duckdb")) as connection:
        connection.executemany(
            "INSERT INTO backgrounds VALUES (?, 'input', 'full', 'full', 999, ?, ?)",
            [[BASE, similarity, share] for similarity, share in ((0.9, 0.002), (0.5, 0.1), (-0.5, 0.9))],
        )
        connection.execute(
            "INSERT INTO lineage VALUES (2, 'k', 1, 'continued', NULL, 1, 0.1, 'confirmed', 'unknown', '', [], 9, now()), "
            "(3, 'k', NULL, 'tuned from the base', NULL, 1, 0, 'not declared', 'known', '', [], 9, now())"
        )
    with Atlas(other) as atlas:
        drawn = pca(atlas)
        for point, near in zip(drawn.points, drawn.neighbours, strict=True):
            known = {one.model: one.background for one in atlas.similar(point.model, k=10)}
            assert all(one.background == pytest.approx(known[KEPT[one.place]]) for one in near)
        told = [one.background for near in drawn.neighbours for one in near]
        assert min(told) >= 0.001
        assert any(0.1 < one < 0.9 for one in told)
        assert {model: [one.words for one in parents] for model, parents in drawn.parents.items()} == {
            2: ["continued, or the other way round; card: confirmed"],
            3: ["tuned from the base; card: not declared"],
        }
        assert drawn.parents[2][0].model == "ann/one"


@pytest.mark.slow
def test_of_many_models_the_neighbours_that_are_kept_are_used(atlas, monkeypatch):
    """They are the ones that would be found again, so nobody moves."""
    exact = model_map(atlas, BASE)
    assert exact.method == "umap"
    monkeypatch.setattr("query.map.map.MOST_COMPARED", 0)
    monkeypatch.setattr("query.map.projection.exact_near", None)  # nothing is compared
    kept = model_map(atlas, BASE)
    places = [[(point.x, point.y) for point in drawn.points] for drawn in (exact, kept)]
    assert np.allclose(*places, atol=1e-3)


def test_neighbours_that_are_not_known_are_left_open():
    from query.map.nearest import Nearest, known_near

    near = Nearest(*map(np.array, ([3, 3, 3, 7, 9], [9, 4, 7, 3, 3], [0.9, 0.8, 0.7, 0.7, 0.9], [np.nan] * 5)))
    places, distances = known_near(near, np.array([3, 7, 9]), 3)
    assert places.tolist() == [[0, 2, 1], [1, 0, -1], [2, 0, -1]]
    assert distances == pytest.approx(np.array([[0, 0.1, 0.3], [0, 0.3, 2], [0, 0.1, 2]]), abs=1e-6)


def test_the_command(folder, tmp_path):
    ran = query(folder, "map", "--method", "tsne", "--color", "licence", "--out", str(tmp_path / "m.svg"), "--theme",
                "dark", "--json")  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    facts = json.loads(ran.stdout)
    assert facts["file"] == str(tmp_path / "m.svg")
    assert facts["groups"] == [{"group": "mit", "models": 3}, {"group": "apache-2.0", "models": 1}]
    assert THEMES["dark"].background.lower() in (tmp_path / "m.svg").read_text().lower()
    ran = query(folder, "map", "--color", "flavour", "--out", str(tmp_path / "n.png"))
    assert ran.returncode == 1
    assert ran.stderr.count("\n") == 1
    assert "flavour" in ran.stderr
    assert not (tmp_path / "n.png").exists()
    ran = query(folder, "map", "--out", "n.bmp")
    assert (ran.returncode, ran.stderr.count("\n")) == (1, 1)
