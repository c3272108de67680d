"""``state_statistics`` without kernels: figures of the metrics it stands for, found together."""

import itertools

import pytest
import torch

from rankscope.core import metrics as m
from rankscope.errors import InputError, KindError, ShapeError

MASK = torch.tensor([[False, True, True, False, True], [True] * 5, [False] * 4 + [True]])
METRICS = {
    "residual": m.residual,
    "relative_residual": lambda x, **k: m.residual(x, relative=True, **k),
    "dispersion": m.dispersion,
    "relative_dispersion": lambda x, **k: m.residual(x, norm="fro", relative=True, **k),
    "mean_cosine": m.mean_cosine,
    "token_norm": m.token_norm,
}
STATES = {
    "plain": lambda x: x,
    "offset": lambda x: x + 100,
    "zero tokens": lambda x: x * torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0])[:, None],
    "equal tokens": lambda x: x[:, :1].expand_as(x),
    "zero": torch.zeros_like,
    "small": lambda x: 1e-30 * x,
    "large": lambda x: 1e30 * x,
    "one giant": lambda x: x * torch.tensor([1.0, 1.0, 1e20, 1.0, 1.0])[:, None],
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "padded"])
@pytest.mark.parametrize("state", STATES)
def test_figures_are_those_of_the_metrics(state, mask, dtype, tokens) -> None:
    x = STATES[state](tokens(3, 5, 4)).to(dtype)
    statistics = m.state_statistics(x, token_mask=mask)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    for name, metric in METRICS.items():
        found, expected = getattr(statistics, name)(), metric(x, token_mask=mask)
        assert found.dtype == torch.float64
        assert found.shape == (3,)
        floor = tolerance if name.startswith(("relative", "mean")) else 0.0
        assert torch.allclose(found, expected.double(), rtol=tolerance, atol=floor), name


def by_hand(x: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    """Sums over tokens and features one after another; the cosine is over all pairs."""
    rows = [row for row, real in zip(x.tolist(), mask.tolist(), strict=True) if real]
    features, n = range(len(rows[0])), len(rows)
    center = [sum(row[k] for row in rows) / n for k in features]
    rest = [[row[k] - center[k] for k in features] for row in rows]
    units = [[entry / sum(e * e for e in row) ** 0.5 for entry in row] for row in rows if any(row)]
    found = {"tokens": n, "nonzero": len(units), "broken": -1}
    for prefix, matrix in (("", rows), ("rest_", rest)):
        found[f"{prefix}one"] = max(sum(abs(row[k]) for row in matrix) for k in features)
        found[f"{prefix}inf"] = max(sum(map(abs, row)) for row in matrix)
        found[f"{prefix}fro"] = sum(entry * entry for row in matrix for entry in row) ** 0.5
    pairs = itertools.product(units, units)
    found["unit_square"] = sum(a * b for u, v in pairs for a, b in zip(u, v, strict=True))
    return found


@pytest.mark.parametrize("shape", [(5, 1), (5, 4), (5, 7)])
def test_every_figure_by_hand(shape, tokens) -> None:
    x = tokens(3, *shape)
    x[1, 2] = 0.0
    statistics = m.state_statistics(x, token_mask=MASK)
    for sample in range(3):
        for name, expected in by_hand(x[sample], MASK[sample]).items():
            assert float(getattr(statistics, name)[sample]) == pytest.approx(expected, rel=1e-12)


def test_leading_axes_are_kept(tokens) -> None:
    x = tokens(2, 3, 5, 4)
    found = m.state_statistics(x, token_mask=MASK)
    assert found.one.shape == (2, 3)
    assert torch.equal(found.rest_one[1], m.state_statistics(x[1], token_mask=MASK).rest_one)
    assert m.state_statistics(x[0, 0]).residual().shape == ()
    assert repr(found) == "StateStatistics of (2, 3) samples"
    assert torch.equal(found.only(1).fro, found.fro[1])
    with pytest.raises(InputError, match="state=2 is out of range"):
        found.only(2)


def test_padding_may_hold_anything_and_strides_do_not_matter(tokens) -> None:
    x = tokens(3, 5, 4)
    broken = torch.where(MASK.unsqueeze(-1), x, torch.nan)
    turned = broken.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    expected = m.state_statistics(x, token_mask=MASK)
    for each in (broken, turned):
        found = m.state_statistics(each, token_mask=MASK)
        for name in list(expected.__dataclass_fields__)[:-3]:
            assert torch.allclose(getattr(found, name), getattr(expected, name), rtol=1e-14), name


def test_nothing_is_left_of_equal_tokens(tokens) -> None:
    found = m.state_statistics(tokens(3, 1, 4).float().expand(3, 7, 4))
    assert not found.rest_one.any()
    assert not found.rest_inf.any()
    assert not found.rest_fro.any()


def test_half_precision_is_that_of_float32(tokens) -> None:
    x = tokens(2, 5, 4).half()
    found, expected = m.state_statistics(x), m.state_statistics(x.float())
    assert torch.equal(found.rest_fro, expected.rest_fro)


def test_one_token() -> None:
    found = m.state_statistics(torch.tensor([[3.0, -4.0]]))
    assert (found.residual(), found.dispersion(), found.mean_cosine()) == (0, 0, 1)
    assert found.token_norm() == 5


@pytest.mark.parametrize(
    ("x", "mask", "error", "words"),
    [
        (torch.full((1, 3, 2), torch.nan), None, InputError, r"x is nan at \[0, 0, 0\]"),
        (torch.full((1, 3, 2), torch.inf), None, InputError, r"x is inf at \[0, 0, 0\]"),
        (torch.full((1, 9, 2), 1e38), None, InputError, "overflows torch.float32"),
        (torch.ones(3, 2), torch.zeros(3).bool(), InputError, "leaves no token"),
        (torch.ones(3, 2), torch.ones(4).bool(), ShapeError, "one entry per token"),
        (torch.ones(3, 2), torch.ones(3), KindError, "expected torch.bool"),
        (torch.ones(3), None, ShapeError, r"\(\.\.\., token, feature\)"),
        (torch.ones(3, 0), None, ShapeError, "no empty axis"),
        (torch.ones(3, 2).long(), None, KindError, "token ids are not hidden states"),
    ],
)
def test_what_cannot_be_measured_is_refused(x, mask, error, words) -> None:
    with pytest.raises(error, match=words):
        m.state_statistics(x, token_mask=mask)


def test_states_that_are_gathered_are_told_apart(tokens) -> None:
    """The first broken token is named, and no other state is touched by it."""
    states = [tokens(2, 5, 4, seed=n) for n in range(3)]
    states[1][1, 3:, 2] = torch.inf
    gathered = m.GatheredStatistics(1)
    for x in states:
        gathered.add(x, MASK[:2])
    found = gathered.finish()
    assert found.broken.tolist() == [[-1, -1], [-1, 3], [-1, -1]]
    words = [found.only(n).fault(torch.float64) for n in range(3)]
    assert (words[0], words[2]) == ("", "")
    assert "not finite at [1, 3] (sample, token)" in words[1]
    expected = m.state_statistics(states[2], token_mask=MASK[:2])
    assert torch.equal(found.only(2).rest_fro, expected.rest_fro)


def test_center_lengths_and_unit_sum(tokens) -> None:
    x = tokens(3, 5, 4)
    found = m.state_statistics(x, token_mask=MASK)
    for sample, kept in enumerate(MASK):
        own = x[sample][kept].double()
        assert torch.allclose(found.center[sample], own.mean(0))
        assert torch.allclose(found.lengths[sample][kept], own.norm(dim=-1))
        assert found.lengths[sample][~kept].eq(0).all()
        assert torch.allclose(found.unit_sum[sample], (own / own.norm(dim=-1)[:, None]).sum(0))


def test_what_has_a_gradient_is_measured_without_it(tokens) -> None:
    x = tokens(2, 4, 3).requires_grad_()
    assert torch.equal(m.state_statistics(x).residual(), m.state_statistics(x.detach()).residual())
