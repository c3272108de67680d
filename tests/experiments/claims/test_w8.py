"""Half-spaces: gaps of angles beside the linear program, Wendel's chances, and each outcome."""

import math

import polars as pl
import pytest
import torch

from rankscope import tables
from rankscope.errors import InputError
from rankscope.experiments import depths, kit
from rankscope.experiments.claims import w8
from rankscope.process.progress import silent

from .small import TINY, tiny


def test_in_the_plane_a_half_space_is_a_gap_of_more_than_half_a_turn() -> None:
    held = []
    for x in w8.draw_starts(0, 60, 5, 2):
        angles = torch.atan2(x[:, 1], x[:, 0]).sort().values
        gaps = torch.cat([angles.diff(), angles[:1] + 2 * math.pi - angles[-1:]])
        held.append(w8.in_half_space(x))
        assert held[-1] == bool(gaps.max() > math.pi)
    assert 0 < sum(held) < 60


def test_opposite_tokens_are_in_no_open_half_space() -> None:
    x = torch.eye(3, dtype=torch.float64)
    assert w8.in_half_space(x)
    assert not w8.in_half_space(torch.cat([x, -x[:1]]))


def test_chances_by_hand() -> None:
    """Three points of a circle: 3/4. On a line all signs must agree. Four points in space: 7/8."""
    assert w8.wendel(3, 2) == 3 / 4
    assert [w8.wendel(n, 1) for n in (1, 2, 5)] == [1, 1 / 2, 1 / 16]
    assert w8.wendel(4, 3) == 7 / 8
    assert all(w8.wendel(n, d) == 1.0 for n in (1, 4, 9) for d in (n, n + 3))


def test_starts_are_on_the_sphere_and_follow_the_seed() -> None:
    x = w8.draw_starts(0, 4, 3, 5)
    assert torch.allclose(x.norm(dim=-1), torch.ones(4, 3, dtype=torch.float64))
    assert not torch.equal(x, w8.draw_starts(1, 4, 3, 5))


def test_a_ring_that_goes_round_stays_and_others_do_not(monkeypatch) -> None:
    """Eight tokens evenly around a circle, and eight within a quarter of it."""
    even = 2 * math.pi * torch.arange(8, dtype=torch.float64) / 8
    angles = torch.stack([even, even / 4])
    starts = torch.stack([angles.cos(), angles.sin()], -1)
    monkeypatch.setattr(w8, "draw_starts", lambda *_: starts)
    config = w8.Config(followed=2, layers=40)
    table, _ = w8.follow(config, w8.WidthRun(w8.RING, 2, 8, 0.0), 0)
    shares = table.filter(metric=w8.COLLAPSED).select("variant", "value").rows()
    assert dict(shares) == {w8.COUNTED: 0.5, w8.OUTSIDE: 0.0}
    last = table.filter(layer=40).sort("sample")["value"].to_list()
    assert last[0] == pytest.approx(0.0, abs=1e-9)
    assert last[1] < -2


COVERED, FEWER = w8.WidthRun("causal", 4, 4), w8.WidthRun(w8.RING, 2, 4)


def made_up(
    *, wide: float = 1.0, narrow: float = 0.5, fallen: float = 1.0, few: float = 0.5,
    rate: float = -0.3,
) -> pl.DataFrame:  # fmt: skip
    names = ("model", "variant", "setting", "layer", "sample", "metric", "value")
    rows: list[tuple[object, ...]] = []
    for width, share in ((2.0, narrow), (4.0, wide)):
        rows.append(("4 tokens", w8.COUNTED, width, None, None, w8.SHARE, share))
        chance = w8.wendel(4, int(width))
        rows.append(("4 tokens", w8.WENDEL, width, None, None, w8.SHARE, chance))
    for run, share in ((COVERED, fallen), (FEWER, few)):
        rows.append((str(run), w8.COUNTED, None, None, 0, w8.COLLAPSED, share))
        rows += [
            (str(run), w8.COUNTED, None, layer, 0, depths.RELATIVE_DISPERSION, rate * layer)
            for layer in range(41)
        ]
    return tables.from_rows(names, rows)


@pytest.mark.parametrize(
    ("changed", "broken", "beyond"),
    [
        ({}, [], [False, True]),
        ({"few": 1.0}, [], [True, True]),
        ({"narrow": 0.1}, [], [False, False]),
        ({"wide": 0.995}, ["every start in a half-space"], [False, False]),
        ({"fallen": 0.9}, [f"{COVERED}: every start collapses"], [False, True]),
        ({"rate": 0.0}, [f"{COVERED}: exponentially"], [False, True]),
    ],
)
def test_each_outcome(changed: dict[str, float], broken: list[str], beyond: list[bool]) -> None:
    config = w8.Config(covered=(COVERED,), fewer=(FEWER,))
    measured = kit.Measured[None](made_up(**changed))
    answer = w8.judge(config, measured)
    assert [check for check, held in (answer.stated or {}).items() if not held] == broken
    assert list((answer.beyond or {}).values()) == beyond
    assert kit.conclude(w8.ENTRY, config, measured).verdict == ("depends" if broken else "holds")


def test_the_small_run_keeps_some_of_the_ring() -> None:
    result, _ = tiny("w8")
    assert "do not" in str(result.beyond)
    module, config = TINY["w8"]
    assert module.ENTRY.run(config, silent).table.equals(result.table)


@pytest.mark.parametrize(
    "fields",
    [{"covered": (FEWER,)}, {"fewer": (COVERED,)}, {"covered": ()}],
)
def test_runs_on_the_wrong_side_are_refused(fields) -> None:
    with pytest.raises(InputError):
        w8.ENTRY.run(w8.Config(**fields), silent)
