"""Ranks under LayerNorm: exact arithmetic against SymPy's, both counterexamples, each outcome."""

from fractions import Fraction

import polars as pl
import pytest
import sympy

from rankscope import tables
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims import n4
from rankscope.process.progress import silent

from ..shown import reads
from .small import TINY, tiny


def normalized(tokens: list[list[int]]) -> sympy.Matrix:
    """LayerNorm with roots kept as roots."""
    rows = []
    for row in tokens:
        mean = sympy.Rational(sum(row), len(row))
        square = sum((x - mean) ** 2 for x in row) / len(row)
        rows.append([(x - mean) / sympy.sqrt(square) for x in row])
    return sympy.Matrix(rows)


def affine_rank(points: sympy.Matrix) -> int:
    differences = sympy.Matrix([points.row(at) - points.row(0) for at in range(1, points.rows)])
    return int(differences.rank(simplify=True))


def test_three_points_on_a_line_by_hand() -> None:
    """(1, −1, 0) + t(0, 1, −1) for t = 0, 1, 2: on a line before, on a circle after."""
    tokens = [[1, -1, 0], [1, 0, -1], [1, 1, -2]]
    before, after = sympy.Matrix(tokens), normalized(tokens)
    assert (affine_rank(before), affine_rank(after)) == (1, 2)
    assert before.rank() == after.rank() == 2
    # The other way: two tokens of one direction and a third, 2 → 1.
    tokens = [[1, -1, 0], [2, -2, 0], [1, 1, -2]]
    before, after = sympy.Matrix(tokens), normalized(tokens)
    assert (affine_rank(before), affine_rank(after)) == (2, 1)
    assert before.rank() == after.rank() == 2


def as_matrix(rows: n4.Matrix) -> sympy.Matrix:
    return sympy.Matrix([[sympy.Rational(x.numerator, x.denominator) for x in r] for r in rows])


@pytest.mark.parametrize("place", n4.SITES)
@pytest.mark.parametrize("dimension", [1, 2])
def test_ranks_are_those_of_sympy(place: str, dimension: int) -> None:
    for draw in range(3):
        tokens = n4.draw_tokens(n4.Numbers(draw, 4, "test"), place, dimension, 4)
        assert len({sum(row) for row in tokens}) == 1
        exact, normed = as_matrix(tokens), n4.layer_norm(tokens)
        assert sympy.simplify(as_matrix(normed) - normalized(exact.tolist())).is_zero_matrix
        assert n4.rank(tokens) == exact.rank()
        assert n4.affine_rank(tokens) == affine_rank(exact)
        assert n4.affine_rank(normed) == affine_rank(as_matrix(normed))


def test_each_place_changes_the_affine_rank_in_its_own_way() -> None:
    changes = {
        place: {
            n4.affine_rank(n4.layer_norm(tokens)) - n4.affine_rank(tokens)
            for draw in range(4)
            for tokens in [n4.draw_tokens(n4.Numbers(draw, 6, place), place, 3, 9)]
        }
        for place in n4.SITES
    }
    assert list(changes.values()) == [{0}, {1}, {-1}]


def test_a_length_that_is_no_fraction_is_noticed() -> None:
    with pytest.raises(AssertionError):
        n4.deviation([Fraction(1), Fraction(0)])


def test_float64_is_compared_entry_by_entry() -> None:
    tokens = [[Fraction(x) for x in row] for row in ([3, 1, -1, -3], [1, 1, -1, -1])]
    exact = [[Fraction(1), Fraction(1), Fraction(-1), Fraction(-1)]] * 2
    assert n4.float64_error(tokens[1:], exact[1:]) < 1e-15
    assert n4.float64_error(tokens, exact) == pytest.approx(1 - 1 / 5**0.5)


def made_up(linear: float, affine: float, error: float = 0.0) -> pl.DataFrame:
    figures = {n4.LINEAR: linear, n4.AFFINE: affine, n4.ERROR: error}
    rows = [("somewhere", 1.0, 0, *figure) for figure in figures.items()]
    rows += [("elsewhere", 1.0, 0, metric, 0.0) for metric in figures]
    return tables.from_rows(("variant", "setting", "sample", "metric", "value"), rows)


@pytest.mark.parametrize(
    ("table", "verdict", "beyond"),
    [
        (made_up(0, 0), "Supported", "Supported"),
        (
            made_up(0, 1),
            "Supported",
            "Not supported: the affine rank is raised in 1 and lowered in 0 of 2 sequences",
        ),
        (
            made_up(0, -1),
            "Supported",
            "Supported for affine rank not raised; not for affine",
        ),
        (made_up(0, 2), "Supported in 4 of 5 cases", "Not supported"),
        (made_up(-1, 0), "Supported in 4 of 5 cases", "Supported"),
        (made_up(0, 0, 1e-3), "Supported in 4 of 5 cases", "Supported"),
    ],
)
def test_each_outcome(table: pl.DataFrame, verdict: str, beyond: str) -> None:
    result = kit.conclude(n4.ENTRY, n4.Config(), table)
    assert reads(result.judgement, verdict)
    assert reads(result.beyond, beyond)


def test_the_small_run_raises_and_lowers() -> None:
    result, _ = tiny("n4")
    assert all(share > 0 for share in result.key_figures.values())
    assert result.verdict == "holds"
    assert result.beyond is not None
    assert result.beyond.verdict == "fails"
    module, config = TINY["n4"]
    assert module.ENTRY.run(config, silent).table.equals(result.table)


@pytest.mark.parametrize("fields", [{"width": 5}, {"dimensions": ()}, {"dimensions": (15,)}])
def test_what_has_no_rational_basis_or_no_room_is_refused(fields) -> None:
    with pytest.raises(InputError):
        n4.ENTRY.run(n4.Config(**fields), silent)
