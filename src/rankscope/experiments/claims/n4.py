"""Claim N4: LayerNorm keeps the linear rank of centred tokens, and nearly their affine rank.

**Derived.** LayerNorm takes tokens ``X`` (one a row) to ``D Y G + 1bᵀ``: ``Y = X(I − 11ᵀ/d)`` are
the centred tokens, ``D = diag(1/√(σ_i² + ε))``, G the gains and b the biases. D multiplies from the
*left*, one number for each token; Dong et al. 2021 argue with a multiplication from the right.

1. D is invertible (as long as no token is constant, or ε > 0), and so is G if no gain is zero.
   Hence ``rank(D Y G) = rank(Y)``.
2. The affine rank of a set of points, the dimension of the smallest flat through them, is their
   linear rank r if that flat contains 0, and r − 1 if it does not. So it is r or r − 1 before the
   norm, and r or r − 1 after it, with the same r: it changes by one at most. G and b change
   nothing, being an invertible affine map.
3. Both changes happen. Points of a flat that misses 0 are moved to the sphere, each along its own
   ray, and in general off every flat that misses 0: three points on a line become three points of
   a circle, affine rank 1 → 2. The way back lowers it: tokens whose directions lie on a flat
   section of the sphere, with lengths that do not, 2 → 1.

So "LayerNorm preserves the affine rank exactly" is false, and so is that it never raises the rank
of what is left of the tokens after a common row is subtracted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from typing import Annotated, NamedTuple

import polars as pl
import torch

from rankscope import tables
from rankscope.arguments import Range
from rankscope.core.network import build_norm
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.numerals import plural, short
from rankscope.streams import stream

ENTRY = kit.claim(
    "N4",
    "LayerNorm keeps the linear rank of centred tokens, and changes their affine rank by at most "
    "one.",
    source="derived for rankscope; against Cirrincione 2026 (abstract) and a remark of Dong et al. "
    "2021",
    question="Which ranks of the tokens does LayerNorm keep, in exact arithmetic?",
    domain="tokens that are not constant, gains that are not zero",
    beyond="that it keeps the affine rank exactly (Cirrincione 2026), or never raises it (Dong et "
    "al. 2021)",
    seconds=1,
    metrics=(
        kit.Metric(
            "affine_rank_change",
            "Change of the affine rank",
            "aff(LN(X)) − aff(X)",
            "linear",
            "0 = LayerNorm keeps it",
            "The dimension of the smallest flat through the tokens after LayerNorm, less that "
            "before it, in exact arithmetic.",
            includes=(-1.0, 0.0, 1.0),
        ),
        kit.Metric(
            "linear_rank_change",
            "Change of the linear rank",
            "rank(LN(X)) − rank(X)",
            "linear",
            "0 = LayerNorm keeps it",
            "The rank of LayerNorm's output without its bias, less that of the centred tokens.",
            includes=(0.0,),
        ),
    ),
)
LINEAR, AFFINE, ERROR = "linear_rank_change", "affine_rank_change", "relative_error"
CHARTS = (kit.Drawing("by_setting", "A curve for each location of the tokens.", AFFINE),)
_ROUNDING = 1e-12

Vector = list[Fraction]
Matrix = list[Vector]


@dataclass(frozen=True)
class Config(kit.Config):
    """Tokens with rational entries and rational lengths, so that nothing is rounded.

    √``width`` is a whole number, which gives the centred features a rational orthonormal basis.
    """

    width: Annotated[int, Range(4, 64)] = 16
    dimensions: tuple[int, ...] = (1, 2, 4, 8)
    """Of the subspace, plane or section that the tokens lie in; at most the width less 2."""
    draws: int = 8
    largest: int = 6  # of the whole numbers that the tokens are made of


class Numbers:
    """Random rational numbers."""

    def __init__(self, seed: int, largest: int, *purpose: str | int) -> None:
        self.generator, self.largest = stream(seed, *purpose), largest

    def whole(self, low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=self.generator))

    def positive(self) -> Fraction:
        return Fraction(self.whole(1, self.largest), self.whole(1, self.largest))

    def unit(self, dimension: int) -> Vector:
        """A rational point of the sphere, by stereographic projection; its first entry is not 0."""
        while True:
            flat = [Fraction(self.whole(-self.largest, self.largest)) for _ in range(dimension - 1)]
            square = sum((x * x for x in flat), Fraction(0))
            sign = 2 * self.whole(0, 1) - 1
            point = [sign * (square - 1) / (square + 1), *(2 * x / (square + 1) for x in flat)]
            if point[0]:
                return point


def _in_subspace(numbers: Numbers, dimension: int) -> Vector:
    """Anywhere in a subspace: directions and lengths of their own."""
    length = numbers.positive()
    return [length * x for x in numbers.unit(dimension)]


def _on_plane(numbers: Numbers, dimension: int) -> Vector:
    """On a plane that misses 0, where the first coordinate is 1."""
    unit = numbers.unit(dimension + 1)
    return [x / unit[0] for x in unit]


def _above_section(numbers: Numbers, dimension: int) -> Vector:
    """Anywhere on the ray through a point of the sphere whose first coordinate is 3/5."""
    length = numbers.positive()
    return [length * x for x in (Fraction(3, 5), *(x * 4 / 5 for x in numbers.unit(dimension)))]


SITES: dict[str, Callable[[Numbers, int], Vector]] = {
    "in a subspace": _in_subspace,
    "on a plane that misses 0": _on_plane,
    "on rays through a section of the sphere": _above_section,
}


def measure(config: Config, on_step: kit.OnStep) -> pl.DataFrame:
    """Both changes of rank for every draw, and how far float64's LayerNorm is off the exact one."""
    if isqrt(config.width) ** 2 != config.width:
        raise InputError(f"width={config.width} is not a square; choose 4, 9, 16, 25, 36 or 49.")
    if not config.dimensions or not 0 < min(config.dimensions) <= max(config.dimensions) < (
        config.width - 1
    ):
        raise InputError(
            f"dimensions={config.dimensions}: expected some from 1 to {config.width - 2}."
        )
    rows = []
    cases = [(site, dimension) for site in SITES for dimension in config.dimensions]
    for (site, dimension), _ in kit.tracked(cases, on_step):
        for draw in range(config.draws):
            numbers = Numbers(config.seed, config.largest, site, dimension, draw)
            tokens = draw_tokens(numbers, site, dimension, config.width)
            normed = layer_norm(tokens)
            gains = [(2 * numbers.whole(0, 1) - 1) * numbers.positive() for _ in tokens[0]]
            bias = [numbers.positive() for _ in tokens[0]]
            gained = [[x * gain for x, gain in zip(row, gains, strict=True)] for row in normed]
            shifted = [[x + b for x, b in zip(row, bias, strict=True)] for row in gained]
            figures = {
                LINEAR: rank(gained) - rank(centred(tokens)),
                AFFINE: affine_rank(shifted) - affine_rank(tokens),
                ERROR: float64_error(tokens, normed),
            }
            rows += [(site, float(dimension), draw, *figure) for figure in figures.items()]
    table = tables.from_rows(("variant", "setting", "sample", "metric", "value"), rows)
    return tables.joined({"dimension": table}, column="parameter")


def draw_tokens(numbers: Numbers, site: str, dimension: int, width: int) -> Matrix:
    """Just enough tokens to fill their place, turned at random, all with the same mean.

    Two reflections turn coordinates into features: a random one, and the one that takes the first
    unit vector to the features' diagonal; coordinates behind the first are centred features.
    """
    side = isqrt(width)
    axis = [Fraction(numbers.whole(-numbers.largest, numbers.largest)) for _ in range(width - 1)]
    diagonal = [Fraction(1, side)] * width
    diagonal[0] -= 1
    mean = numbers.positive()
    tokens = []
    for _ in range(dimension + 2):
        point = SITES[site](numbers, dimension)
        turned = reflect(point + [Fraction(0)] * (width - 1 - len(point)), axis)
        tokens.append([x + mean for x in reflect([Fraction(0), *turned], diagonal)])
    return tokens


def reflect(point: Vector, axis: Vector) -> Vector:
    """A point at the other side of the plane orthogonal to an axis; an axis of 0 does nothing."""
    square = sum(x * x for x in axis)
    along = sum(x * y for x, y in zip(point, axis, strict=True))
    twice = 2 * along / square if square else 0
    return [x - twice * y for x, y in zip(point, axis, strict=True)]


def centred(tokens: Matrix) -> Matrix:
    """Each token less the mean of its features."""
    means = [sum(row, Fraction(0)) / len(row) for row in tokens]
    return [[x - mean for x in row] for row, mean in zip(tokens, means, strict=True)]


def layer_norm(tokens: Matrix) -> Matrix:
    """LayerNorm with ε = 0, gain 1 and bias 0, of tokens whose deviations are rational."""
    rows = centred(tokens)
    deviations = map(deviation, rows)
    return [[x / size for x in row] for row, size in zip(rows, deviations, strict=True)]


def deviation(row: Vector) -> Fraction:
    """The root of the mean square, which must be rational."""
    square = sum((x * x for x in row), Fraction(0)) / len(row)
    root = Fraction(isqrt(square.numerator), isqrt(square.denominator))
    assert root * root == square
    return root


def rank(rows: Matrix) -> int:
    """By elimination."""
    rows = [row[:] for row in rows]
    pivots = 0
    for column in range(len(rows[0])):
        pivot = next((at for at in range(pivots, len(rows)) if rows[at][column]), None)
        if pivot is None:
            continue
        rows[pivots], rows[pivot] = rows[pivot], rows[pivots]
        head = rows[pivots]
        for below in range(pivots + 1, len(rows)):
            factor = rows[below][column] / head[column]
            if factor:
                rows[below] = [x - factor * y for x, y in zip(rows[below], head, strict=True)]
        pivots += 1
    return pivots


def affine_rank(rows: Matrix) -> int:
    """The rank of the differences to the first point."""
    first = rows[0]
    return rank([[x - y for x, y in zip(row, first, strict=True)] for row in rows])


def float64_error(tokens: Matrix, normed: Matrix) -> float:
    """The largest difference of the networks' LayerNorm in float64 from the exact one."""
    rounded, exact = (
        torch.tensor([[float(x) for x in row] for row in rows], dtype=torch.float64)
        for rows in (tokens, normed)
    )
    norm = build_norm("layer", len(tokens[0]), eps=0.0, bias=True).double()
    return float((norm(rounded) - exact).abs().max().detach())


class Changes(NamedTuple):
    """The smallest and the largest change of a rank."""

    least: int
    most: int


def judge(config: Config, table: pl.DataFrame) -> kit.Answer:
    """For every place of the tokens both ranks; beyond, what was said of the affine rank."""
    del config
    sites = table["variant"].unique(maintain_order=True).to_list()
    linear, affine = (
        {site: _changes(table.filter(variant=site, metric=metric)) for site in sites}
        for metric in (LINEAR, AFFINE)
    )
    values = table.filter(metric=AFFINE)["value"].to_list()
    raised, lowered = sum(value > 0 for value in values), sum(value < 0 for value in values)
    changed = f"raised in {raised} and lowered in {lowered} of {plural(len(values), 'sequence')}"
    error = max(table.filter(metric=ERROR)["value"].to_list())
    return kit.Answer(
        (
            f"The affine rank is {changed}, by "
            f"{max(map(abs, (end for pair in affine.values() for end in pair)))} at most.",
            f"The networks' LayerNorm in float64 differs from the exact one by {short(error)} at "
            "most.",
        ),
        stated={
            **{f"linear rank, tokens {site}": linear[site] == (0, 0) for site in sites},
            **{
                f"affine rank within one, tokens {site}": max(map(abs, affine[site])) <= 1
                for site in sites
            },
            "float64 agrees": error < _ROUNDING,
        },
        beyond={"affine rank kept": not raised + lowered, "affine rank not raised": not raised},
        on_beyond={"fails": f"the affine rank is {changed}"},
        key_figures={
            "sequences whose affine rank is raised, share": raised / len(values),
            "sequences whose affine rank is lowered, share": lowered / len(values),
        },
        listings=(
            kit.Listing(
                "Changes of rank under LayerNorm",
                ("tokens", "linear rank", "affine rank"),
                tuple((site, *map(_in_words, (linear[site], affine[site]))) for site in sites),
                "Over all draws and dimensions, in exact arithmetic.",
            ),
        ),
    )


def _changes(rows: pl.DataFrame) -> Changes:
    values: Sequence[float] = rows["value"].to_list()
    return Changes(int(min(values)), int(max(values)))


def _in_words(changes: Changes) -> str:
    least, most = (f"{change:+d}".replace("-", "−") if change else "kept" for change in changes)
    return least if least == most else f"{least} to {most}"
