"""Tokens that stay above rank one: the derived equilibrium, the shares, and each outcome."""

import math
from dataclasses import replace

import polars as pl
import pytest
import torch
from scipy.optimize import brentq

from rankscope import tables
from rankscope.core.theory import equilibrium_at
from rankscope.experiments import kit
from rankscope.experiments.claims import w6
from rankscope.experiments.claims._norm_starts import (
    ABOVE,
    APART,
    RADIUS,
    STABLE,
    Dynamics,
    StartsPlan,
    build,
    follow,
    starts,
)
from rankscope.process.progress import silent

from ..shown import can_be_shown, reads, steps_of

TINY = w6.Config(
    starts=40,
    layers=30,
    every=10,
    draws=2,
    suitable=(Dynamics("two", tokens=2),),
    controls=(Dynamics("orthogonal values", "orthogonal"),),
    others=(Dynamics("random values", "random", "random", 4, 3, strength=1.0),),
)
# Every layer is run in scaled arithmetic, three times. These come to rest within a few.
SOON = Dynamics("two", tokens=2, decay=0.3, strength=2.0)
LAYERS = 6
END = 4 * LAYERS


@pytest.fixture(scope="module")
def found():
    return steps_of(w6.ENTRY.run, replace(TINY, layers=LAYERS, every=3, suitable=(SOON,)))[0]


def derived(case: Dynamics) -> tuple[float, float]:
    """The angle at which two tokens rest, and the multiplier there that is not the decay."""
    decay, strength, avoidance = case.decay, case.strength, case.avoidance

    def weight(angle: float) -> float:
        return math.exp(-strength * (math.sin(angle) - avoidance * (1 + math.cos(angle))))

    angle = brentq(lambda phi: (1 - decay) * math.cos(phi) - weight(phi), 0.3, 1.0, xtol=1e-14)
    c, s = math.cos(angle), math.sin(angle)
    second = (decay * c**2 + s**2 - strength * weight(angle) * s * (c + avoidance * s)) / decay
    return angle, second


def test_the_derived_equilibrium_has_rank_two_and_the_derived_multipliers() -> None:
    case = Dynamics("two", tokens=2)
    angle, second = derived(case)
    x = torch.tensor([[1.0, 0.0], [-math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    found = equilibrium_at(build(case, 1, 0), x, polish=False)
    assert found.residual < 1e-12
    assert found.rank == 2
    assert angle == pytest.approx(0.5709, abs=1e-4)
    assert second == pytest.approx(-0.355, abs=1e-3)
    assert found.stable
    assert found.stability.radius == pytest.approx(max(case.decay, abs(second)), rel=1e-6)


def test_matrices_are_what_their_names_say() -> None:
    network = build(Dynamics("skewed", "skewed", "uniform", decay=0.5), 1, 0)
    values = network.blocks[0].attention.value.weight.T.detach()
    assert sorted(torch.linalg.eigvals(values).real.tolist()) == pytest.approx([0.5, 1.0])
    left = torch.linalg.eig(values.T).eigenvectors.real
    assert abs(float(left[:, 0] @ left[:, 1])) == pytest.approx(0.9)
    assert network.blocks[0].attention.query.weight.abs().max() == 0
    turned = build(Dynamics("turned", width=4), 1, 0).blocks[0].attention.query.weight.T.detach()
    assert torch.equal(turned + turned.T, -2 * 8.0 * 0.2 * torch.eye(4).double())
    orthogonal = build(Dynamics("o", "orthogonal", width=5), 2, 3).blocks
    one = orthogonal[0].attention.value.weight.detach()
    torch.testing.assert_close(one @ one.T, torch.eye(5).double())
    assert torch.equal(one, orthogonal[1].attention.value.weight)
    fresh = build(Dynamics("f", "random", "random", fresh=True), 2, 3).blocks
    assert not torch.equal(*(block.attention.value.weight for block in fresh))


def test_starts_are_uniform_on_the_sphere() -> None:
    x = starts(Dynamics("x", tokens=50, width=3), 40, 0)
    torch.testing.assert_close(x.norm(dim=-1), torch.ones(40, 50).double())
    assert x.mean((0, 1)).abs().max() < 0.05
    assert not torch.equal(x, starts(Dynamics("x", tokens=50, width=3), 40, 1))


def test_shares_are_those_of_a_plain_iteration(found) -> None:
    """From the equations alone, without networks and scaled arithmetic."""
    x = starts(SOON, TINY.starts, TINY.seed)
    values = torch.diag(torch.tensor([1.0, SOON.decay]).double())
    scores = SOON.strength * torch.tensor([[-0.2, 1.0], [-1.0, -0.2]]).double()
    for _ in range(END):
        logits = (x @ scores @ x.mT).masked_fill(torch.ones(2, 2).triu(1).bool(), -math.inf)
        x = logits.softmax(-1) @ x @ values
        x = x / x.norm(dim=-1, keepdim=True)
    ratio = torch.linalg.svdvals(x)
    share = (ratio[:, 1] > 0.01 * ratio[:, 0]).double().mean().item()
    ends = dict(found.table.filter(variant=SOON.name, layer=END).select("metric", "value").rows())
    assert 0.02 < share < 0.5
    assert ends[ABOVE] == ends[APART] == pytest.approx(share)
    assert ends[RADIUS] == pytest.approx(max(SOON.decay, abs(derived(SOON)[1])), rel=1e-6)


def test_the_run_holds_can_be_shown_and_repeated(found) -> None:
    can_be_shown(found)
    assert found.verdict == "holds"
    assert str(found.beyond) == "Not supported"
    fewer = replace(TINY, layers=1, every=1, controls=(), others=())
    once, again, other = (
        w6.ENTRY.run(replace(fewer, seed=seed), silent).table for seed in (0, 0, 1)
    )
    assert once.equals(again)
    assert not once.equals(other)


def judged(config: w6.Config, table: pl.DataFrame) -> kit.Result:
    return kit.conclude(w6.ENTRY, config, kit.Measured(table))


def made_up(two: tuple[float, float], control: float, other: float) -> pl.DataFrame:
    (suitable,), (orthogonal,), (random,) = TINY.suitable, TINY.controls, TINY.others
    return shares({suitable.name: two, orthogonal.name: (control,) * 2, random.name: (other,) * 2})


def shares(by_case: dict[str, tuple[float, float]]) -> pl.DataFrame:
    """Those after a quarter of the layers and after all."""
    return tables.from_rows(
        ("variant", "layer", "metric", "value"),
        [
            (name, layer, metric, value)
            for name, ends in by_case.items()
            for layer, value in zip((30, 120), ends, strict=True)
            for metric in (ABOVE, APART)
        ],
    )


@pytest.mark.parametrize(
    ("table", "verdict", "beyond"),
    [
        (
            made_up((0.3, 0.3), 0.0, 0.0),
            "Supported for 30% to 30% of random starts",
            "Not supported",
        ),
        (
            made_up((0.3, 0.2), 0.0, 0.1),
            "Supported for orthogonal values; not for two",
            "Supported",
        ),  # still leaving
        (
            made_up((0.01, 0.01), 0.0, 0.1),
            "Supported for orthogonal values; not for two",
            "Supported",
        ),  # no general class
        (
            made_up((0.3, 0.3), 0.1, 0.1),
            "Supported for two; not for orthogonal values",
            "Supported",
        ),  # orthogonal values stay apart
        (made_up((0.0, 0.0), 0.1, 0.1), "Not supported", "Supported"),
    ],
)
def test_each_outcome(table: pl.DataFrame, verdict: str, beyond: str) -> None:
    found = judged(TINY, table)
    assert reads(found.judgement, verdict)
    assert str(found.beyond) == beyond
    assert all(sentence.endswith(".") for sentence in found.sentences)


def test_the_other_cases_are_named_with_what_was_measured() -> None:
    """A share that dwindles is not none."""
    full, layer, random = (Dynamics(name) for name in ("full mask", "LayerNorm", "random"))
    config = replace(TINY, starts=60, controls=(), others=(full, layer, random))
    ends = {"two": (0.3, 0.3), "LayerNorm": (0.3, 0.29), "random": (0.0, 0.0)}
    assert str(judged(config, shares(ends | {"full mask": (0.4, 0.17)})).beyond) == (
        "Supported in part: a share of the starts stays above rank one with LayerNorm (30% "
        "after 30 "
        "layers, 29% after 120); not with full mask (40% after 30 layers, 17% after 120), random "
        "(0%)"
    )
    lasting = shares(dict.fromkeys(("two", "full mask", "LayerNorm", "random"), (0.3, 0.3)))
    assert str(judged(config, lasting).beyond) == "Supported"


@pytest.mark.parametrize("starts", [20, 60, 200])
def test_a_general_class_is_more_than_no_hit_could_hide(starts: int) -> None:
    """The largest share that leaves all starts below with 5 %, solved: 1 − 0.05^(1/N)."""
    config = replace(TINY, starts=starts)
    hidden = 1 - 0.05 ** (1 / starts)
    assert hidden <= config.least < 1.1 * hidden + 0.5 / starts
    for hits, verdict in ((3, "fails"), (4, "holds")):
        share = hits / starts
        table = made_up((share, share), 0.1, 0.0)
        assert judged(replace(config, controls=()), table).verdict == verdict


def test_poles_differ_and_are_not_above_rank_one() -> None:
    """Attention that prefers itself: tokens end at ±x."""
    case = Dynamics("poles", tokens=4, avoidance=-3.0, strength=3.0, decay=0.5)
    rows, _ = follow(StartsPlan(TINY.seed, starts=20, layers=LAYERS, every=3), case, silent)
    ends = {metric: value for _, layer, metric, value in rows if layer == END}
    assert ends[APART] > 0.3
    assert ends[ABOVE] == 0.0
    assert ends[STABLE] == pytest.approx(1.0, abs=1e-3)
