"""Estimated ranks: the exact value lies within the stated error, for spectra of every kind."""

import os
import subprocess
import sys
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from rankscope.core import metrics as m
from rankscope.core.metrics import _estimated_spectra, _mean_split
from rankscope.core.metrics import _lanczos_quadrature as quadrature
from rankscope.errors import RankscopeError, ShapeError

RANKS = ("effective_rank", "stable_rank", "participation_ratio")
SHAPES = ((120, 90), (64, 160), (70, 70), (20, 30), (2, 50), (1, 9), (50, 1))


@pytest.fixture
def in_pieces(monkeypatch):
    """Products in bfloat16 pieces, as on CUDA."""
    monkeypatch.setattr(_estimated_spectra, "in_pieces", lambda x: x.dtype != torch.float64)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_values(tokens: int, features: int, sigma: Tensor) -> Tensor:
    left = torch.linalg.qr(drawn(tokens, len(sigma)))[0]
    right = torch.linalg.qr(drawn(features, len(sigma), seed=1))[0]
    return left * sigma @ right.mT


def matrix(kind: str, n: int, d: int) -> Tensor:
    i = torch.arange(min(n, d), dtype=torch.float64)
    x, row = drawn(n, d, seed=2), drawn(d, seed=3)
    massive = x.clone()
    massive[0] *= 1000
    return {
        "flat": lambda: with_values(n, d, torch.ones_like(i)),
        "random": lambda: x,
        "with a mean": lambda: x + 3 * row,
        "power law": lambda: with_values(n, d, 1 / (i + 1)),
        "exponential": lambda: with_values(n, d, (-i / 20).exp()),
        "giant": lambda: with_values(n, d, torch.where(i == 0, 1000.0, 1.0 - i / (2 * len(i)))),
        "massive token": lambda: massive,
        "low rank": lambda: with_values(n, d, (i < 10).double()),
        "near collapse": lambda: row + 1e-3 * x,
        "nearer": lambda: row + 1e-6 * x,
        "equal tokens": lambda: row.expand(n, d),
        "zero": lambda: torch.zeros(n, d, dtype=torch.float64),
    }[kind]()


KINDS = (
    "flat",
    "random",
    "with a mean",
    "power law",
    "exponential",
    "giant",
    "massive token",
    "low rank",
    "near collapse",
    "nearer",
    "equal tokens",
    "zero",
)


def hits(x: Tensor, seeds: range, **options) -> dict[str, list[bool]]:
    exact = m.spectra(x.double())
    found = {name: [] for name in RANKS}
    for seed in seeds:
        guess = m.estimated_spectra(x, seed=seed, **options)
        for name in RANKS:
            value, error = getattr(guess, name)()
            truth = getattr(exact, name)()
            found[name].append(bool((value - truth).abs() <= error + 1e-12))
    return found


def covered(runs: list[dict[str, list[bool]]]) -> dict[str, float]:
    every = {name: [hit for run in runs for hit in run[name]] for name in RANKS}
    return {name: sum(each) / len(each) for name, each in every.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_errors_cover_the_truth(kind: str) -> None:
    runs = [hits(matrix(kind, n, d), range(4 if n * d > 600 else 1)) for n, d in SHAPES]
    assert min(covered(runs).values()) >= 0.9, covered(runs)


def test_errors_cover_the_truth_over_many_seeds() -> None:
    """Where chance is all there is: at least 95 of 100 draws."""
    for kind in ("random", "giant", "massive token"):
        share = covered([hits(matrix(kind, 64, 80), range(100, 150))])
        assert min(share.values()) >= 0.95, (kind, share)


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_products_in_pieces_lose_nothing_that_is_not_stated(dtype: torch.dtype) -> None:
    runs = [hits(matrix(kind, n, d).to(dtype), range(2)) for kind in KINDS for n, d in SHAPES[:2]]
    assert min(covered(runs).values()) >= 0.95, covered(runs)


@pytest.mark.usefixtures("in_pieces")
def test_near_collapse_keeps_its_digits_in_bfloat16() -> None:
    """Few numbers differ, by one bit: the mean must be set apart before anything is multiplied."""
    other = torch.rand(96, 160, generator=torch.Generator().manual_seed(0)) < 0.002
    x = (1 + other * 2.0**-7).bfloat16()
    exact, found = m.spectra(x.double()), m.estimated_spectra(x, steps=24)
    rank = found.effective_rank()
    assert exact.spectral_ratio() < 3e-4
    excess = exact.effective_rank() - 1
    assert abs(rank.value - 1 - excess) <= rank.error < 0.2 * excess


@pytest.mark.usefixtures("in_pieces")
def test_what_is_below_the_noise_is_left_open() -> None:
    """63 values that float32 holds and products in pieces do not: all that is known is how many."""
    sigma = torch.full((64,), 1e-8, dtype=torch.float64)
    sigma[0] = 1
    rank = m.estimated_spectra(with_values(64, 80, sigma).float()).effective_rank()
    assert rank.error > 1e-3


@pytest.mark.parametrize("tall", [False, True])
def test_large_matrices_have_small_errors(tall: bool) -> None:
    """Smaller than 2,048 × 4,096, so that errors are larger: still a few per cent."""
    n, d = (1024, 512) if tall else (512, 1024)
    slow = drawn(n, d) * (torch.arange(d) + 1.0) ** -0.25 + drawn(d, seed=5)
    for x, most in ((drawn(n, d), 0.02), (slow, 0.03)):
        rank = m.estimated_spectra(x).effective_rank()
        truth = m.effective_rank(x)
        assert abs(rank.value - truth) <= rank.error < most * truth


@pytest.mark.usefixtures("in_pieces")
def test_padding_changes_nothing() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x = (drawn(3, 40, 64) + drawn(64)).to(dtype)
        mask = torch.arange(40) < torch.tensor([[40], [33], [2]])
        x[~mask] = torch.nan
        guess = m.estimated_spectra(x, token_mask=mask)
        for sample, count in enumerate((40, 33, 2)):
            exact = m.spectra(x[sample, :count].double())
            for name in RANKS:
                value, error = getattr(guess, name)()
                assert abs(value[sample] - getattr(exact, name)()) <= error[sample] + 1e-12


def several_states() -> list[Tensor]:
    same = [drawn(2, 30, 50, seed=s) for s in range(5)]
    return [*same, drawn(6, 4), drawn(3, 30, 50), drawn(2, 30, 50).float()]


def test_a_probe_gives_what_each_state_gives_alone() -> None:
    states = several_states()
    probe = m.SpectrumProbe(bytes_held=2 * states[0].numel() * 8)
    for x in states:
        probe.feed(x)
        x.zero_()  # what was fed is the probe's own
    states = several_states()
    for x, got in zip(states, probe.finish(), strict=True):
        alone = m.estimated_spectra(x)
        for name in RANKS:
            value, error = getattr(got, name)()
            assert value.shape == x.shape[:-2]
            assert torch.allclose(value, getattr(alone, name)().value, rtol=1e-9)
            assert torch.allclose(error, getattr(alone, name)().error, rtol=1e-6, atol=1e-12)


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_center_that_is_known_changes_nothing(dtype: torch.dtype) -> None:
    """Be it the mean or only near it: what is left of the mean is looked at again."""
    x = (0.1 * drawn(2, 40, 64) + 1 + drawn(64).abs()).to(dtype)
    mean = x.float().mean(-2)
    wanted = m.estimated_spectra(x)
    for center in (mean, 1.01 * mean):
        probe = m.SpectrumProbe()
        probe.feed(x, center=center)
        found = probe.finish()[0]
        for name in RANKS:
            got, want = getattr(found, name)(), getattr(wanted, name)()
            assert torch.allclose(got.value, want.value, rtol=1e-3)
            assert torch.all((got.value - want.value).abs() <= want.error)


def test_a_center_that_is_known_is_not_computed() -> None:
    """What is subtracted is what was given, the mean or not; a power of two is taken out."""
    x = drawn(2, 5, 4)
    for center in (x.mean(-2), x.mean(-2) + 0.25):
        terms = (torch.empty_like(x),)
        shift = _mean_split.move_plainly(x, None, center, terms).shift
        exponents = torch.log2(shift / center)
        assert torch.equal(exponents, exponents.round()[:, :1].expand(2, 4))
    computed = _mean_split.move_plainly(x, None, None, terms).shift
    assert torch.allclose(computed, x.mean(-2) * 2 ** exponents[:, :1], atol=1e-15)


def test_a_center_must_be_a_row_for_every_sample() -> None:
    with pytest.raises(ShapeError, match=r"center has shape \(4,\), expected \(2, 4\)"):
        m.SpectrumProbe().feed(drawn(2, 5, 4), center=torch.zeros(4))


def test_there_must_be_a_sample() -> None:
    with pytest.raises(ShapeError, match="expected at least one sample"):
        m.estimated_spectra(drawn(0, 5, 4))


def test_what_cannot_be_told_cannot_be_asked() -> None:
    assert not hasattr(m.estimated_spectra(drawn(5, 4)), "spectral_ratio")


def test_seeds_decide() -> None:
    x = drawn(60, 80)
    one, same, other = (m.estimated_spectra(x, seed=s).effective_rank() for s in (0, 0, 1))
    assert one.value == same.value != other.value


def test_without_fourth_powers_there_is_no_participation_ratio() -> None:
    probe = m.SpectrumProbe(fourth_powers=False)
    probe.feed(drawn(5, 4))
    assert torch.isnan(probe.finish()[0].participation_ratio().value)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_matrix_that_is_not_finite_spoils_no_other(bad: float) -> None:
    x = drawn(3, 40, 30)
    alone = m.estimated_spectra(x)
    x[1, 2, 3] = bad
    probe = m.SpectrumProbe()
    probe.feed(x)
    probe.feed(drawn(3, 40, 30), token_mask=torch.tensor([[True], [False], [True]]))
    for found in probe.finish():
        for name in RANKS:
            for got, want in zip(getattr(found, name)(), getattr(alone, name)(), strict=True):
                assert torch.isnan(got[1])
                assert torch.allclose(got[::2], want[::2], rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.usefixtures("in_pieces")
def test_scale_is_no_matter(scale: float) -> None:
    x = drawn(40, 30).float()
    for name in RANKS:
        plain, scaled = (getattr(m.estimated_spectra(y), name)() for y in (x, x * scale))
        assert torch.allclose(plain.value, scaled.value, rtol=1e-4)


def test_not_finite_is_refused() -> None:
    with pytest.raises(RankscopeError, match="not finite"):
        m.estimated_spectra(torch.full((3, 4), torch.inf))


def test_continued_fractions_are_those_of_the_eigenvalues() -> None:
    """φ by mpmath's eigenvalues of the Jacobi matrix and of the one with a node at zero."""
    alpha, beta = (drawn(2, 4, seed=s).abs().numpy() + 0.1 for s in (0, 1))
    low, high = quadrature.fractions(alpha, beta)
    for got, last in ((high, float(alpha[1, 3])), (low, 0.0)):
        b = mpmath.matrix(4, 4)
        for k in range(4):
            b[k, k] = float(alpha[1, k]) if k < 3 else last
            if k < 3:
                b[k, k + 1] = float(beta[1, k])
        with mpmath.workdps(60):
            values, vectors = mpmath.eigsy(b.T * b)
        for node in (0, 20, 36, 40, 44, 64):
            t = mpmath.exp(float(quadrature.NODES[node]))
            phi = sum(vectors[0, k] ** 2 * values[k] / (values[k] + t) for k in range(4))
            assert float(got[node, 1]) == pytest.approx(float(phi), rel=2e-6, abs=1e-14)


def test_the_trapezoidal_rule_gives_the_entropy() -> None:
    sigma = np.array([0.9, 0.3, 1e-2, 1e-6])
    phi = (sigma**2 / (sigma**2 + quadrature.LEVELS[:, None])).sum(-1)
    p = sigma / sigma.sum()
    total, mixed = quadrature.sums(phi)
    assert total == pytest.approx(sigma.sum(), rel=2e-6)
    assert quadrature.entropy(total, mixed) == pytest.approx(-(p * np.log(p)).sum(), rel=1e-5)


def test_entropy_bounds_are_reached_and_hold() -> None:
    """Between bounds few nodes wide every φ can be tried: at each node the least or the largest."""
    sigma = np.array([0.9, 0.3, 0.1])
    low = (sigma**2 / (sigma**2 + quadrature.LEVELS[:, None])).sum(-1)
    high = low.copy()
    high[30:40] += 0.2
    corners = np.array([[i >> k & 1 for k in range(10)] for i in range(1024)]).T * 0.2
    every = np.repeat(low[:, None], 1024, 1)
    every[30:40] += corners
    entropies = quadrature.entropy(*quadrature.sums(every))
    least, most = quadrature.entropy_bounds(low[:, None], high[:, None])
    assert least == pytest.approx(entropies.min(), rel=1e-12)
    assert most == pytest.approx(entropies.max(), rel=1e-12)


def printed(script: str) -> list[list[str]]:
    """What a script beside this file prints, in words: Triton's mode holds for a whole process."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name(script))],
        env={**os.environ, "PYTHONPATH": str(Path(m.__file__).parents[3]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [line.split() for line in done.stdout.splitlines()]


def test_kernels_compile_for_a_gpu() -> None:
    """The interpreter takes what the compiler does not: variables that change their type, say."""
    names = [name for name, done in printed("kernels_compiled.py") if done == "True"]
    statistics = ["mean_and_rows", "rest_and_columns"] * 2 + ["largest_entries"]
    assert names == ["_survey"] * 2 + ["_write"] * 2 + statistics + ["_half_step"] * 2


def test_kernels_do_what_pytorch_does() -> None:
    found: dict[str, list[float]] = {}
    for name, off in printed("kernels_interpreted.py"):
        found.setdefault(name, []).append(float(off))
    cases = 3 * 3 + 2 * 2
    # Products in pieces are good to 2⁻¹⁸; how bfloat16 rounds is another thing in the interpreter.
    most = {"centring": 2e-7, "whole-1": 0, "whole-2": 2**-15, "noise": 2e-3, "half-step": 1e-4}
    assert {name: len(each) for name, each in found.items()} == {
        "centring": 4 * cases,
        "whole-1": 5,
        "whole-2": cases - 5,
        "noise": cases,
        "half-step": 36,
    }
    assert all(max(found[name]) <= limit for name, limit in most.items()), found
