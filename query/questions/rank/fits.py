"""Simple laws for a rank as a function of depth: six forms fitted by least squares and compared.

x is the layer, from 0. Each nonlinear form is nonlinear in one parameter only; given that one, the others follow
exactly (variable projection: Golub & Pereyra, 1973), so a search along a line is enough.
All layers have equal weight: the spread over models measures how much models differ, not how certain their mean is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from query.contract.results import Doc

Floats = NDArray[np.float64]
Parameters = dict[str, float]

# Grid points tried for the nonlinear parameter before the best one is refined.
_GRID_POINTS = 201
_STEEPEST_RATE = 3.0  # of an exponential, per layer: a factor of twenty
_STEEPEST_POWER = 5.0
_LONGEST_ELLIPSE = 10.0  # A, in units of the depth: beyond, the ellipse is practically a parabola
# Residuals below this share of the largest rank are rounding errors: forms that leave less fit equally well.
_ROUNDING = 1e-6
# A smaller difference in AIC is no evidence for either form (Burnham & Anderson, 2002).
_INDIFFERENT = 2.0
_FEWEST_FOR_CURVES = 6  # layers needed for a curved form: any curve with two parameters passes near four points


@dataclass(frozen=True)
class Form:
    """A law with ``count`` parameters; ``fit(x, y, depth)`` finds them, where every x is below ``depth``."""

    count: int
    fit: Callable[[Floats, Floats, int], Parameters]
    curve: Callable[[Mapping[str, float], Floats], Floats]
    equation: Callable[[Mapping[str, float]], str]


@dataclass(frozen=True)
class Fit:
    """One form fitted to the ranks of one family.

    For n layers, k parameters and the sum of squared residuals RSS:

    Attributes:
        aic: n ln(RSS/n) + 2k.
        aicc: for few layers, aic + 2k(k + 1)/(n − k − 1) (after Sugiura, 1978; the variance, which all forms share, is
            not counted in k); None if n ≤ k + 1.
        loo_error: the leave-one-layer-out root mean square error, in ranks; None for a single layer.
    """

    form: Annotated[str, Doc("Form of the equation: constant, linear, quadratic, exponential, power or elliptic.")]
    equation: Annotated[str, Doc("The equation that fits best; x is the layer.")]
    aic: Annotated[float, Doc("Akaike's information criterion of the fit; smaller is better.")]
    loo_error: Annotated[
        float | None,
        Doc(
            "Leave-one-out error, in ranks: how far the equation is off at a layer left out of the fit (root mean "
            "square)."
        ),
    ]
    aicc: Annotated[
        float | None, Doc("The same, corrected for few layers; the form with the smallest value is the best.")
    ]
    parameters: Annotated[Parameters, Doc("Fitted parameters of the equation, by name.")]

    def at(self, layers: Sequence[float] | Floats) -> Floats:
        """The fitted rank at ``layers``."""
        return FORMS[self.form].curve(self.parameters, np.asarray(layers, dtype=np.float64))


def fit_forms(ranks: Sequence[float | None]) -> tuple[Fit, ...]:
    """Fit every form for which there are enough ``ranks`` (by layer from 0): more than k + 1 for k parameters.

    Layers with None are left out. One known layer is enough for the constant; fewer than six give only the constant and
    the line.
    """
    layers = [layer for layer, rank in enumerate(ranks) if rank is not None]
    x = np.array(layers, dtype=np.float64)
    y = np.array([ranks[layer] for layer in layers], dtype=np.float64)
    fits = []
    for name, form in FORMS.items():
        fewest = max(form.count + 2, 0 if name == "linear" else _FEWEST_FOR_CURVES)
        if len(layers) >= (1 if name == "constant" else fewest):
            fits.append(_fit(name, form, x, y, len(ranks)))
    return tuple(fits)


def best_fit(fits: Sequence[Fit]) -> Fit | None:
    """The fit with the fewest parameters, then the smaller AICc, among the fits within 2 of the smallest AICc.

    With few layers AICc prefers the constant to any slope. So the constant is not chosen if the line is closer to the
    layers that are left out of the fit. None if ``fits`` is empty.
    """
    errors = {fit.form: fit.loo_error for fit in fits if fit.loo_error is not None}
    if errors.get("linear", math.inf) < errors.get("constant", -math.inf):
        fits = [fit for fit in fits if fit.form != "constant"]
    aicc_of = {fit.form: fit.aicc for fit in fits if fit.aicc is not None}
    if not aicc_of:
        return fits[0] if fits else None
    smallest = min(aicc_of.values())
    close = [fit for fit in fits if aicc_of.get(fit.form, math.inf) <= smallest + _INDIFFERENT]
    return min(close, key=lambda fit: (len(fit.parameters), aicc_of[fit.form]))


def _fit(name: str, form: Form, x: Floats, y: Floats, depth: int) -> Fit:
    parameters = form.fit(x, y, depth)
    spare = len(x) - form.count - 1
    rounding = _ROUNDING * max(float(np.abs(y).max()), 1.0)
    residual = max(_root_mean_square(y - form.curve(parameters, x)), rounding)
    aic = 2 * len(x) * math.log(residual) + 2 * form.count
    loo_error = None
    if len(x) > 1:
        errors = np.empty(len(x))
        for index in range(len(x)):
            without = form.fit(np.delete(x, index), np.delete(y, index), depth)
            errors[index] = y[index] - form.curve(without, x[[index]])[0]
        loo_error = _root_mean_square(errors)
        loo_error = loo_error if loo_error > rounding else 0.0
    return Fit(
        form=name,
        equation=f"rank ≈ {form.equation(parameters)}",
        aic=aic,
        loo_error=loo_error,
        aicc=aic + 2 * form.count * (form.count + 1) / spare if spare > 0 else None,
        parameters=parameters,
    )


def _root_mean_square(errors: Floats) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))


# ---- fitting: shapes are (grid points, layers), one row for each value of the nonlinear parameter


def _polynomial(degree: int, x: Floats, y: Floats, _depth: int) -> Parameters:
    powers = np.vander(x, degree + 1, increasing=True)
    coefficients = np.linalg.lstsq(powers, y, rcond=None)[0]
    # Coefficients that contribute only rounding errors become zero.
    is_zero = np.abs(coefficients * powers).max(axis=0) < _ROUNDING * np.abs(y).max()
    return dict(zip("abc", np.where(is_zero, 0.0, coefficients).tolist(), strict=False))


def _exponential(x: Floats, y: Floats, _depth: int) -> Parameters:
    rate, _, factor = _search(_around_zero(_STEEPEST_RATE), lambda rates: np.exp(rates * x), _proportional, y)
    return {"a": factor, "b": rate}


def _power(x: Floats, y: Floats, _depth: int) -> Parameters:
    power, _, factor = _search(_around_zero(_STEEPEST_POWER), lambda powers: (x + 1) ** powers, _proportional, y)
    return {"a": factor, "b": power}


def _elliptic(x: Floats, y: Floats, depth: int) -> Parameters:
    # With A = depth / sin φ the curve is smooth in φ up to A = depth, where it ends vertically.
    angles = np.linspace(math.asin(1 / _LONGEST_ELLIPSE), math.pi / 2, _GRID_POINTS)
    angle, low, step = _search(angles, lambda angles: _quarter((x + 1) / depth * np.sin(angles)), _rising, y)
    low = low if low > _ROUNDING * y.max() else 0.0
    return {"r_min": low, "r_max": low + step, "A": depth / math.sin(angle)}


def _around_zero(widest: float) -> Floats:
    """Grid points from −widest to widest, denser near zero, where curves differ most."""
    return widest * np.sinh(np.linspace(-6, 6, _GRID_POINTS)) / math.sinh(6)


def _quarter(shares: Floats) -> Floats:
    return np.sqrt(np.clip(1 - np.square(shares), 0, None))


def _search(
    grid: Floats,
    columns: Callable[[Floats], Floats],
    solve: Callable[[Floats, Floats], tuple[Floats, Floats]],
    y: Floats,
) -> tuple[float, float, float]:
    """The value with the least squared residuals, and the offset and factor of its shape."""
    from scipy.optimize import minimize_scalar

    def losses_at(values: Floats) -> Floats:
        shapes = columns(values[:, None])
        offsets, factors = solve(shapes, y)
        return np.square(y - offsets[:, None] - factors[:, None] * shapes).sum(axis=1)

    losses = losses_at(grid)
    best = int(losses.argmin())
    bounds = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    minimum = minimize_scalar(
        lambda value: losses_at(np.array([value]))[0], bounds=bounds, method="bounded", options={"xatol": 1e-12}
    )
    value = float(minimum.x) if minimum.fun < losses[best] else float(grid[best])
    offsets, factors = solve(columns(np.array([[value]])), y)
    return value, float(offsets[0]), float(factors[0])


def _proportional(shapes: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Y ≈ factor · shape."""
    return np.zeros(len(shapes)), shapes @ y / np.square(shapes).sum(axis=1)


def _rising(shapes: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Y ≈ offset + factor · shape, both at least 0 (no rank is negative, and r_max is above r_min)."""
    means = shapes.mean(axis=1)
    centred = shapes - means[:, None]
    factors = np.clip(centred @ (y - y.mean()) / np.maximum(np.square(centred).sum(axis=1), 1e-300), 0, None)
    offsets = y.mean() - factors * means
    through_zero = offsets < 0
    return np.where(through_zero, 0, offsets), np.where(through_zero, _proportional(shapes, y)[1], factors)


# ---- equations


def rounded(number: float) -> str:
    """Three significant figures, without trailing zeros, with a real minus sign."""
    if number == 0:
        return "0"
    decimals = 2 - math.floor(math.log10(abs(number)))
    if decimals > 6:
        mantissa, _, exponent = f"{number:.1e}".partition("e")
        return f"{mantissa}·10^{int(exponent)}".replace("-", "−")
    text = f"{number:.{max(decimals, 0)}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−")


def _sum(parameters: Mapping[str, float]) -> str:
    """A polynomial: a + b·x + c·x²."""
    terms = [(parameters[name], power) for name, power in (("b", "·x"), ("c", "·x²")) if name in parameters]
    return _plus((parameters["a"], ""), *terms)


def _plus(*terms: tuple[float, str]) -> str:
    """A sum of terms (coefficient, factor), without terms of coefficient zero."""
    first, *others = [term for term in terms if term[0]] or [terms[0]]
    signed = [f"{'−' if number < 0 else '+'} {rounded(abs(number))}{factor}" for number, factor in others]
    return " ".join([rounded(first[0]) + first[1], *signed])


FORMS = {
    "constant": Form(1, partial(_polynomial, 0), lambda p, x: np.full(len(x), p["a"]), _sum),
    "linear": Form(2, partial(_polynomial, 1), lambda p, x: p["a"] + p["b"] * x, _sum),
    "exponential": Form(
        2,
        _exponential,
        lambda p, x: p["a"] * np.exp(p["b"] * x),
        lambda p: f"{rounded(p['a'])}·e^({rounded(p['b'])}·x)",
    ),
    "power": Form(
        2,
        _power,
        lambda p, x: p["a"] * (x + 1) ** p["b"],
        lambda p: f"{rounded(p['a'])}·(x+1)^" + (rounded(p["b"]) if p["b"] >= 0 else f"({rounded(p['b'])})"),
    ),
    "quadratic": Form(3, partial(_polynomial, 2), lambda p, x: p["a"] + p["b"] * x + p["c"] * x**2, _sum),
    "elliptic": Form(
        3,
        _elliptic,
        lambda p, x: p["r_min"] + (p["r_max"] - p["r_min"]) * _quarter((x + 1) / p["A"]),
        lambda p: _plus((p["r_min"], ""), (p["r_max"] - p["r_min"], f"·√(1 − ((x+1)/{rounded(p['A'])})²)")),
    ),
}
