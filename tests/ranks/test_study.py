"""A study of ranks in the database, in the output of the commands and in the picture."""

from __future__ import annotations

import json

import numpy as np
import pytest

from query.questions.rank.fits import best_fit, fit_forms
from query.questions.rank.study import FEWEST_MODELS, FamilyRanks, RankStudy, mean_interval
from tests.ranks.conftest import DEPTH


def test_the_view_agrees_with_the_study(atlas):
    rows = atlas.rows("SELECT * FROM rank_by_depth WHERE base = 'org/gpt'")
    for percent in (50, 80, 90, 95, 99):
        for of, column in (("delta", f"rank_{percent}"), ("weights", f"weight_rank_{percent}")):
            studies = [atlas.rank("org/gpt", threshold=percent / 100, of=of, whole=whole) for whole in (False, True)]
            families = studies[1].families | studies[0].families
            assert {(row["family"], row["layer"]): row[column] for row in rows} == {
                (name, layer): pytest.approx(rank)
                for name, family in families.items()
                for layer, rank in enumerate(family.ranks)
            }


def test_all_columns_have_comments(atlas):
    """Tables of ranks, as every other."""
    rows = atlas.rows(
        "SELECT table_name, column_name FROM duckdb_columns() WHERE table_name IN ('deltas', 'fused_matrices', 'records') "
        "AND comment IS NULL"
    )
    assert rows == []


# ---- JSON, rows, tables and notes


def test_json_has_the_documented_keys_first(planted):
    result = planted.shell("query", "rank", "--base", "org/known", "--threshold", "0.8", "--of", "weights", "--json")
    assert result.code == 0, result.err
    answer = result.json
    assert list(answer)[:5] == ["base", "of", "threshold", "models", "families"]
    assert (answer["base"], answer["of"], answer["threshold"], answer["models"]) == ("org/known", "weights", 0.8, 5)
    family = answer["families"]["query"]
    assert list(family)[:3] == ["ranks", "spread", "fit"]
    assert list(family["fit"])[:4] == ["form", "equation", "aic", "loo_error"]
    assert family["fit"]["equation"] in {fit["equation"] for fit in family["fits"]}
    assert len(family["ranks"]) == len(family["spread"]) == len(family["counts"]) == DEPTH
    assert "left out: 1 copy" in result.err


def test_csv_and_data_frame_have_a_row_for_each_family_and_layer(planted, atlas):
    result = planted.shell("query", "rank", "--base", "org/t5", "--format", "csv")
    header, *rows = result.out.splitlines()
    assert header == "family,layer,rank,spread,models,fitted"
    assert len(rows) == 6 * 2 + 10 * 3
    frame = atlas.rank("org/t5").to_df()
    assert list(frame.columns) == header.split(",")
    assert frame[(frame.family == "decoder.cross_query") & (frame.layer == 1)].models.item() == 2


@pytest.mark.slow
def test_table_out_and_notes(planted, tmp_path):
    result = planted.shell("query", "rank", "--base", "org/t5", "--out", str(tmp_path / "ranks.svg"))
    assert result.code == 0, result.err
    assert "mean rank (decoder, cross-attention)" in result.out
    assert "rank ≈ " not in result.out
    assert "no equation is fitted: it needs at least 3 models, and this is 2 models" in result.err
    assert "rank ≈ " in planted.shell("query", "rank", "--base", "org/known").out
    assert (tmp_path / "ranks.svg").read_text().startswith("<?xml")
    result = planted.shell("query", "rank", "--base", "org/t5", "--out", str(tmp_path / "ranks.gif"))
    assert result.code == 2
    assert "does not end in .png, .svg or .pdf" in result.err


def test_same_atlas_same_answer(atlas):
    assert json.dumps(atlas.rank("org/gpt").to_dict()) == json.dumps(atlas.rank("org/gpt").to_dict())


# ---- what is said of the mean


def test_no_equation_is_fitted_to_one_model(atlas):
    one = atlas.rank("org/known", model="ann/one")
    assert all(family.fit is None and family.fits == () for family in one.families.values())
    assert "no equation is fitted: it needs at least 3 models, and this is 1 model" in one.notes
    assert one.best_fits == []
    assert all(family.fit for family in atlas.rank("org/known").families.values())


def test_the_band_is_the_interval_over_authors():
    """Of authors with one model each, it is that of t for the mean, on the scale of its logarithm."""
    values = np.array([3.0, 4.0, 4.0, 6.0, 5.0, 7.0])
    names = list("abcdef")
    low, high = mean_interval(values, names)
    mean = values.mean()
    factor = np.exp(2.570582 * values.std(ddof=1) / np.sqrt(6) / mean)
    assert (low, high) == pytest.approx((mean / factor, mean * factor), rel=1e-4)
    # Many models by one author are not many models.
    assert mean_interval(np.repeat(values, 20), np.repeat(names, 20)) == pytest.approx((low, high))
    assert mean_interval(values, list("abcdab")) is None


def test_falling_ranks_have_no_flat_line():
    """Of four layers AICc allows no slope; ranks that do not fall with depth still have a constant."""
    falling = fit_forms([3.0, 2.2, 2.3, 1.5])
    aicc = {fit.form: fit.aicc for fit in falling}
    assert min(aicc, key=aicc.__getitem__) == "constant"
    assert best_fit(falling).form == "linear"
    assert best_fit(fit_forms([5.0] * 4)).form == "constant"
    assert best_fit(fit_forms([5.0, 6.0, 5.0, 6.0, 5.0])).form == "constant"
    assert best_fit(fit_forms([5.0, 3.0])).form == "constant"  # two layers have no line


# ---- the picture


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("base", "panels"), [("org/known", 6), ("org/gpt", 6), ("org/t5", 16)])
def test_a_panel_for_each_family_with_its_line_band_and_equation(atlas, base, panels, theme):
    study = atlas.rank(base)
    figure = study.figure(theme)
    panels_shown = [axes for axes in figure.axes if axes.axison]
    assert [axes.get_title(loc="left") for axes in panels_shown] == list(study.families)
    assert len(panels_shown) == panels
    for axes, family in zip(panels_shown, study.families.values(), strict=True):
        lines = {line.get_marker(): line for line in axes.lines}
        np.testing.assert_allclose(lines["o"].get_ydata(), family.ranks)
        assert [text.get_text() for text in axes.texts] == (
            [family.fit.equation.removeprefix("rank ")] if family.fit else []
        )
        assert (family.fit is None) == (study.models < FEWEST_MODELS)
        highest = [*family.ranks, *(family.high if family.has_interval else np.add(family.ranks, family.spread))]
        assert axes.get_ylim()[1] >= max(end for end in highest if end is not None)
        assert len(axes.collections) == 1
    assert len({axes.get_ylim() for axes in panels_shown}) == 1


@pytest.mark.parametrize(("base", "whole"), [("org/gpt", True), ("org/known", False)])
def test_the_legend_is_whole(atlas, base, whole):
    figure = atlas.rank(base, whole=whole).figure()
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box, room = legend.get_window_extent(), figure.bbox
    assert room.x0 <= box.x0 < box.x1 <= room.x1
    assert room.y0 <= box.y0 < box.y1 <= room.y1


@pytest.mark.slow
def test_hostile_names_are_drawn_as_they_are(atlas, tmp_path):
    """A $ is no formula, and a control character is spelt out."""
    study = atlas.rank("org/t5")
    hostile = RankStudy(**(vars(study) | {"base": "a/$\\frac{", "model": "b/$x_{1}$\x1b[2J\u202e"}))
    hostile.write(tmp_path / "hostile.svg")
    drawn = (tmp_path / "hostile.svg").read_text()
    assert "$\\frac{" in drawn
    assert "\x1b" not in drawn
    assert "\u202e" not in drawn


def test_holes_one_layer_and_no_fit_can_be_drawn(tmp_path):
    from query.models.population import LeftOut

    def family(*ranks):
        spread, fits = tuple(None if rank is None else 1.0 for rank in ranks), fit_forms(ranks)
        return FamilyRanks(ranks, spread, best_fit(fits), tuple(int(rank is not None) for rank in ranks), fits)

    families = {
        "query": family(None, 3.0, None, 5.0), "gate_feedforward1": family(None, None), "output": family(7.0),
    }  # fmt: skip
    study = RankStudy("a/b", "delta", 0.5, 1, families, None, (), False, LeftOut(), (), ())
    study.write(tmp_path / "few.png")
    assert (tmp_path / "few.png").stat().st_size > 5000
