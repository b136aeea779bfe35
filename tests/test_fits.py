"""Fits of rank by depth: known laws come back, the right one is chosen, and few layers do not support a long law."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import least_squares

from query.questions.rank.fits import FORMS, Fit, best_fit, fit_forms, rounded

pytestmark = pytest.mark.slow

# Written out once more, from DESIGN.md; x is the layer from 0.
LAWS: dict[str, Callable] = {
    "constant": lambda x, a: a + 0 * x,
    "linear": lambda x, a, b: a + b * x,
    "quadratic": lambda x, a, b, c: a + b * x + c * x**2,
    "exponential": lambda x, a, b: a * np.exp(b * x),
    "power": lambda x, a, b: a * (x + 1) ** b,
    "elliptic": lambda x, r_min, r_max, A: r_min + (r_max - r_min) * np.sqrt(1 - ((x + 1) / A) ** 2),
}
PLANTED = [
    ("constant", {"a": 20.0}),
    ("linear", {"a": 41.2, "b": 3.1}),
    ("linear", {"a": 90.0, "b": -6.5}),
    ("quadratic", {"a": 40.0, "b": -8.0, "c": 0.75}),
    ("quadratic", {"a": 5.0, "b": 9.0, "c": -0.6}),
    ("exponential", {"a": 3.0, "b": 0.21}),
    ("exponential", {"a": 150.0, "b": -0.6}),
    ("exponential", {"a": 700.0, "b": -2.5}),
    ("power", {"a": 7.0, "b": 0.52}),
    ("power", {"a": 300.0, "b": -1.4}),
    ("power", {"a": 0.5, "b": 2.2}),
    ("elliptic", {"r_min": 3.2, "r_max": 41.2, "A": 12.4}),
    ("elliptic", {"r_min": 10.0, "r_max": 200.0, "A": 12.0}),  # upright at its end
    ("elliptic", {"r_min": 0.0, "r_max": 60.0, "A": 14.0}),
    ("elliptic", {"r_min": 50.0, "r_max": 90.0, "A": 30.0}),
]
LAYERS = np.arange(12.0)


def by_form(ranks) -> dict[str, Fit]:
    return {fit.form: fit for fit in fit_forms(list(ranks))}


@pytest.mark.parametrize(("form", "parameters"), PLANTED)
def test_a_planted_law_comes_back_exactly_and_is_chosen(form, parameters):
    ranks = LAWS[form](LAYERS, **parameters)
    fit = by_form(ranks)[form]
    for name, value in parameters.items():
        assert fit.parameters[name] == pytest.approx(value, rel=1e-5, abs=1e-5)
    np.testing.assert_allclose(fit.at(LAYERS), ranks, rtol=1e-6)
    assert fit.loo_error == pytest.approx(0, abs=1e-4)
    chosen = best_fit(fit_forms(ranks.tolist()))
    assert chosen.form == form


# On the border of what A may be there are no such errors.
@pytest.mark.parametrize(("form", "parameters"), [one for one in PLANTED if one[1].get("A") != len(LAYERS)])
def test_with_noise_it_comes_back_within_its_errors(form, parameters):
    """Standard errors from the planted law's own Jacobian: (JᵀJ)⁻¹ σ². 40 draws; each parameter unbiased."""
    names, true = list(parameters), np.array(list(parameters.values()))
    clean = LAWS[form](LAYERS, *true)
    sigma = 0.002 * clean.max()
    steps = 1e-6 * np.maximum(np.abs(true), 1)
    jacobian = np.stack([(LAWS[form](LAYERS, *(true + step)) - clean) / step.sum() for step in np.diag(steps)], axis=1)
    errors = sigma * np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian)))
    rng = np.random.default_rng(1)
    found = []
    for _ in range(40):
        fit = FORMS[form].fit(LAYERS, clean + sigma * rng.normal(size=len(LAYERS)), len(LAYERS))
        found.append([fit[name] for name in names])
    off = (np.array(found) - true) / errors
    assert np.abs(np.median(off, axis=0)).max() < 0.6  # 1.25 / √40 is one standard error of a median
    assert np.abs(off).max() < 5


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("form", ["exponential", "power", "elliptic"])
def test_no_start_of_another_solver_finds_a_better_fit(form, seed):
    """Against scipy's bounded least squares from twenty starts, on curves that none of the forms fits well."""
    rng = np.random.default_rng(seed)
    ranks = 30 + 10 * np.sin(LAYERS / (1 + seed)) + 5 * rng.normal(size=len(LAYERS))
    mine = np.square(by_form(ranks)[form].at(LAYERS) - ranks).sum()
    low = {"exponential": [0, -3], "power": [0, -5], "elliptic": [0, 0, 12]}[form]
    high = {"exponential": [1e4, 3], "power": [1e4, 5], "elliptic": [1e4, 1e4, 120]}[form]

    def curve(values):
        if form == "elliptic":  # r_min and the height above it, so that bounds can say r_max ≥ r_min
            return LAWS[form](LAYERS, values[0], values[0] + values[1], values[2])
        return LAWS[form](LAYERS, *values)

    best = math.inf
    for _ in range(20):
        start = [rng.uniform(a, min(b, 60)) * 0.98 + 0.01 * a for a, b in zip(low, high, strict=True)]
        start = np.clip(start, np.array(low) + 1e-3, np.array(high) - 1e-3)
        best = min(best, 2 * least_squares(lambda v: curve(v) - ranks, start, bounds=(low, high)).cost)
    assert mine <= best * (1 + 1e-6)


def test_aic_and_left_out_errors_by_their_formulas():
    """Of the straight line: the error at a left-out layer is its residual over 1 − leverage (Allen's PRESS)."""
    rng = np.random.default_rng(0)
    ranks = 10 + 2 * LAYERS + rng.normal(size=12)
    fit = by_form(ranks)["linear"]
    design = np.stack([np.ones(12), LAYERS], axis=1)
    hat = design @ np.linalg.pinv(design)
    residual = ranks - hat @ ranks
    rss = float(residual @ residual)
    assert fit.aic == pytest.approx(12 * math.log(rss / 12) + 2 * 2)
    assert fit.aicc == pytest.approx(fit.aic + 2 * 2 * 3 / (12 - 2 - 1))
    assert fit.loo_error == pytest.approx(math.sqrt(np.mean((residual / (1 - np.diag(hat))) ** 2)))
    constant = by_form(ranks)["constant"]
    assert constant.parameters["a"] == pytest.approx(ranks.mean())
    assert constant.loo_error == pytest.approx(np.sqrt(np.mean(np.square((ranks - ranks.mean()) * 12 / 11))))


def test_left_out_errors_of_a_bent_form_are_those_of_real_refits():
    ranks = 40 * np.exp(-0.3 * LAYERS) + np.random.default_rng(3).normal(size=12)
    errors = []
    for layer in range(12):
        x, y = np.delete(LAYERS, layer), np.delete(ranks, layer)
        found = least_squares(lambda v, x=x, y=y: v[0] * np.exp(v[1] * x) - y, [40, -0.3]).x
        errors.append(ranks[layer] - found[0] * np.exp(found[1] * layer))
    assert by_form(ranks)["exponential"].loo_error == pytest.approx(np.sqrt(np.mean(np.square(errors))), rel=1e-4)


def test_a_left_out_last_layer_still_bounds_the_ellipse():
    """A is at least the depth of the base, whatever layers are known: else the curve would end before they do."""
    ranks = np.append(LAWS["elliptic"](LAYERS[:-1], 5, 60, 11.05), 5) + 0.2 * np.random.default_rng(4).normal(size=12)
    errors = []
    for layer in range(12):
        x, y = np.delete(LAYERS, layer), np.delete(ranks, layer)
        costs = []
        for start in (12.001, 12.05, 12.5, 15, 40):  # r_min, the height above it, A

            def off(v, x=x, y=y):
                return LAWS["elliptic"](x, v[0], v[0] + v[1], v[2]) - y

            found = least_squares(off, [5, 50, start], bounds=([0, 0, 12], [1e3, 1e3, 120]), xtol=1e-12)
            costs.append(
                (found.cost, ranks[layer] - LAWS["elliptic"](float(layer), found.x[0], sum(found.x[:2]), found.x[2]))
            )
        errors.append(min(costs)[1])
    assert by_form(ranks)["elliptic"].loo_error == pytest.approx(np.sqrt(np.mean(np.square(errors))), rel=1e-3)


def noisy(form: str, layers: int, rng: np.random.Generator) -> list[float]:
    """A law that goes over about 30 ranks, with an error of half a rank in each layer."""
    x, last = np.arange(float(layers)), layers - 1.0
    clean = {
        "constant": LAWS["constant"](x, 20),
        "linear": LAWS["linear"](x, 10, 30 / last),
        "quadratic": LAWS["quadratic"](x, 40, -100 / last, 90 / last**2),
        "exponential": LAWS["exponential"](x, 2, math.log(16) / last),
        "power": LAWS["power"](x, 40, -0.9),
        "elliptic": LAWS["elliptic"](x, 5, 40, layers * 1.01),
    }[form]
    return (clean + 0.5 * rng.normal(size=layers)).tolist()


@pytest.mark.parametrize("layers", [6, 12, 24])
def test_how_often_the_right_form_is_chosen(layers):
    """The README and the docstring promise no more than this."""
    rng = np.random.default_rng(layers)
    draws = 12 if layers < 24 else 6
    for form in LAWS:
        right = sum(best_fit(fit_forms(noisy(form, layers, rng))).form == form for _ in range(draws))
        assert right >= 0.75 * draws, form


@pytest.mark.parametrize("layers", [4, 6, 12])
def test_noise_alone_is_seldom_a_law(layers):
    rng = np.random.default_rng(7)
    chosen = [best_fit(fit_forms((20 + rng.normal(size=layers)).tolist())).form for _ in range(24)]
    assert chosen.count("constant") >= 19


# ---- little to fit


@pytest.mark.parametrize(
    ("layers", "forms"),
    [
        (0, []),
        (1, ["constant"]),
        (2, ["constant"]),
        (3, ["constant"]),
        (4, ["constant", "linear"]),
        (5, ["constant", "linear"]),
        (6, ["constant", "linear", "exponential", "power", "quadratic", "elliptic"]),
    ],
)
def test_a_form_needs_more_layers_than_parameters_and_one_and_a_bent_one_six(layers, forms):
    fits = fit_forms([3.0 + layer for layer in range(layers)])
    assert [fit.form for fit in fits] == forms
    for fit in fits:
        assert all(math.isfinite(value) for value in fit.parameters.values())
        assert math.isfinite(fit.aic)
        assert (fit.loo_error is None) == (layers == 1)
    chosen = best_fit(fits)
    assert (chosen and chosen.form) == {0: None, 4: "linear", 5: "linear", 6: "linear"}.get(layers, "constant")


def test_few_layers_get_at_most_a_line():
    """An exponential that four or five points follow exactly is told as a line: nobody could say which law it is."""
    for layers in (4, 5):
        bent = (100 * np.exp(-0.8 * np.arange(layers))).tolist()
        assert best_fit(fit_forms(bent)).form in ("constant", "linear")
        assert best_fit(fit_forms([None, *bent, None])).form in ("constant", "linear")  # what counts is what is known
    assert best_fit(fit_forms((100 * np.exp(-0.8 * np.arange(6))).tolist())).form == "exponential"


def test_one_layer_and_two():
    (one,) = fit_forms([5.0])
    assert (one.equation, one.aicc, one.loo_error) == ("rank ≈ 5", None, None)
    (two,) = fit_forms([5.0, 6.0])
    assert (two.equation, two.aicc, two.loo_error) == ("rank ≈ 5.5", None, 1.0)


def test_unknown_layers_are_left_out_and_x_stays_the_layer():
    ranks = [None, 5.0, 7.0, None, 11.0, 13.0, 15.0, None]
    chosen = best_fit(fit_forms(ranks))
    assert chosen.equation == "rank ≈ 3 + 2·x"
    assert fit_forms([None, None]) == ()
    ellipse = LAWS["elliptic"](LAYERS, 4, 40, 12.5).tolist()
    holes = [rank if layer not in (0, 5, 11) else None for layer, rank in enumerate(ellipse)]
    fit = best_fit(fit_forms(holes))
    np.testing.assert_allclose(fit.at(LAYERS), ellipse, rtol=1e-5)


def test_equal_ranks_are_a_constant_whatever_they_are():
    for value in (1.0, 512.0):
        chosen = best_fit(fit_forms([value] * 12))
        assert chosen.form == "constant"
        assert chosen.parameters == {"a": pytest.approx(value)}


def test_an_ellipse_never_rises_nor_goes_below_zero():
    for ranks in (3 + 2 * LAYERS, 30 - 4 * LAYERS, np.where(LAYERS < 6, 40, 0.1)):
        parameters = by_form(ranks)["elliptic"].parameters
        assert parameters["r_max"] >= parameters["r_min"] >= 0
        assert parameters["A"] >= 12


# ---- equations


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (41.2345, "41.2"), (3.1, "3.1"), (3.0, "3"), (1234.5, "1234"), (-0.0312, "−0.0312"), (0.5, "0.5"), (0, "0"),
        (99.96, "100"), (-7.0, "−7"), (0.00001234, "1.2·10^−5"), (2.0000001, "2"), (123.4, "123"), (9.999, "10"),
    ],
)  # fmt: skip
def test_numbers_as_a_person_writes_them(number, text):
    assert rounded(number) == text


@pytest.mark.parametrize(
    ("form", "parameters", "equation"),
    [
        ("constant", {"a": 20}, "rank ≈ 20"),
        ("linear", {"a": 41.2, "b": 3.1}, "rank ≈ 41.2 + 3.1·x"),
        ("linear", {"a": 41.2, "b": -3.1}, "rank ≈ 41.2 − 3.1·x"),
        ("quadratic", {"a": 40, "b": -8, "c": 0.75}, "rank ≈ 40 − 8·x + 0.75·x²"),
        ("exponential", {"a": 3, "b": 0.21}, "rank ≈ 3·e^(0.21·x)"),
        ("exponential", {"a": 150, "b": -0.6}, "rank ≈ 150·e^(−0.6·x)"),
        ("power", {"a": 7, "b": 0.52}, "rank ≈ 7·(x+1)^0.52"),
        ("power", {"a": 300, "b": -1.4}, "rank ≈ 300·(x+1)^(−1.4)"),
        ("elliptic", {"r_min": 3.2, "r_max": 41.2, "A": 12.4}, "rank ≈ 3.2 + 38·√(1 − ((x+1)/12.4)²)"),
    ],
)
def test_equations(form, parameters, equation):
    chosen = best_fit(fit_forms(LAWS[form](LAYERS, **parameters).tolist()))
    assert chosen.equation == equation


@pytest.mark.parametrize(("form", "parameters"), PLANTED)
def test_a_printed_equation_computes_what_it_stands_for(form, parameters):
    """Evaluated as it is printed, it is within 2 % of the curve's largest rank."""
    ranks = LAWS[form](LAYERS, **parameters)
    text = best_fit(fit_forms(ranks.tolist())).equation.removeprefix("rank ≈ ")
    for printed, python in {"−": "-", "·": "*", "²": "**2", "e^": "np.e^", "^": "**", "√(": "root("}.items():
        text = text.replace(printed, python)
    values = eval(text, {"np": np, "x": LAYERS, "root": lambda inner: np.sqrt(np.maximum(inner, 0))})
    np.testing.assert_allclose(values, ranks, atol=0.02 * ranks.max())
