"""Temperatures: softmax written out in float64 beside scaled arithmetic, and each outcome."""

import math

import polars as pl
import pytest
import torch

from rankscope import tables
from rankscope.core.theory import head_weights
from rankscope.errors import InputError
from rankscope.experiments import depths, kit
from rankscope.experiments.claims import w7
from rankscope.experiments.norm_cases import NormSetting, random_network
from rankscope.process.progress import silent

SMALL = w7.Config(
    layers=4, shallow=2, draws=2, samples=1, width=16, tokens=8, temperatures=(1.0, 0.2),
    local=("window:2",), others=(),
)  # fmt: skip


@pytest.fixture(scope="module")
def small() -> kit.Result:
    return w7.ENTRY.run(SMALL, silent)


@pytest.mark.parametrize("temperature", SMALL.temperatures)
def test_logits_are_divided_by_the_temperature(small: kit.Result, temperature: float) -> None:
    """Two layers of float64, in other code, with the weights of a network of temperature 1."""
    network = random_network(NormSetting("full", 1, 16, norm="none"), 4, SMALL.seed)
    x = SMALL.texts()[0][0]
    expected = []
    for block in network.blocks[:2]:
        weights = head_weights(block.attention)
        logits = x @ weights.query_key[0] @ x.T / 4.0 / temperature
        x = torch.softmax(logits, -1) @ x @ weights.values[0]
        expected.append(math.log10(float((x - x.mean(0)).norm() / x.norm())))
    rows = small.table.filter(
        model="full mask",
        variant=w7.curve(temperature),
        sample=0,
        metric=depths.RELATIVE_DISPERSION,
    )
    assert rows.sort("layer")["value"].to_list()[1:3] == pytest.approx(expected, rel=1e-6)


def test_every_panel_and_draw_is_in_the_table(small: kit.Result) -> None:
    assert small.table["model"].unique(maintain_order=True).to_list() == [
        "full mask", "window:2 mask", "full mask, LayerNorm", "window:2 mask, LayerNorm",
    ]  # fmt: skip
    assert small.table.height == 4 * 2 * 2 * 5
    assert w7.ENTRY.run(SMALL, silent).table.equals(small.table)
    assert small.judgement is not None
    assert small.beyond is not None
    assert all(sentence.endswith(".") for sentence in small.sentences)


PLAIN = {
    "full mask": {1.0: (-4.0, -8.0), 0.2: (-1.0, -4.0)},
    "window:2 mask": {1.0: (-1.0, -2.0), 0.2: (-0.2, -1.2)},
}
"""By panel and temperature, after two and after four layers."""


def made_up(**changed: dict[float, tuple[float, float]]) -> pl.DataFrame:
    plain = PLAIN | {f"{mask} mask": ends for mask, ends in changed.items()}
    panels = plain | {f"{name}, LayerNorm": ends for name, ends in PLAIN.items()}
    rows = [
        (name, w7.curve(t), layer, draw, depths.RELATIVE_DISPERSION, start + value)
        for name, by_temperature in panels.items()
        for t, (near, far) in by_temperature.items()
        for layer, value in enumerate((0.0, near / 2, near, (near + far) / 2, far))
        for draw, start in ((0, -0.1), (1, -0.3))
    ]
    names = ("model", "variant", "layer", "sample", "metric", "value")
    return tables.from_rows(names, rows)


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        ({}, []),
        ({"full": {1.0: (-4.0, -8.0), 0.2: (-1.0, -2.0)}}, ["full: less in deep layers"]),
        (
            {"full": {1.0: (-4.0, -8.0), 0.2: (-4.5, -8.6)}},
            ["full: slower", "full: slowed by more than window:2", "full: less in deep layers"],
        ),
        (
            {"full": {1.0: (-1.0, -3.0), 0.2: (-0.5, -2.4)}},
            ["full: slowed by more than window:2"],
        ),
    ],
)
def test_each_outcome(changed: dict[str, dict[float, tuple[float, float]]], broken) -> None:
    config = w7.Config(
        layers=4, shallow=2, draws=2, samples=1, temperatures=(1.0, 0.2),
        local=("window:2",), others=(),
    )  # fmt: skip
    answer = w7.judge(config, depths.Measured(made_up(**changed)))
    assert [check for check, held in (answer.stated or {}).items() if not held] == broken
    assert [check for check, held in (answer.beyond or {}).items() if not held] == (
        ["full mask: slower to the last layer"] if "full: slower" in broken else []
    )


def test_the_effect_is_the_ratio_of_decades() -> None:
    losses = {1.0: [[0.0], [-2.0], [-6.0]], 0.5: [[0.0], [-1.0], [-2.0]], 2.0: [[9.0]] * 3}
    assert w7.effect(losses, 0, 1) == pytest.approx(math.log(1 / 2))
    assert w7.effect(losses, 1, 2) == pytest.approx(math.log(1 / 4))


def test_what_draws_differ_by_is_neither_slower_nor_faster() -> None:
    """Differences of 0.1 with an error of 1 between two temperatures, of 3 to the third."""
    losses = {2.0: [[0.0, 2.0]], 1.0: [[1.9, -0.1]], 0.5: [[3.0, 5.1]]}
    assert w7.slower(losses, 0)
    assert not w7.slower({**losses, 0.5: [[0.0, 2.5]]}, 0)
    assert not w7.slower({**losses, 1.0: [[-5.0, -3.1]]}, 0)


@pytest.mark.parametrize(
    "fields",
    [{"local": ()}, {"temperatures": (2.0, 0.5)}, {"temperatures": (1.0, 2.0)}, {"shallow": 12},
     {"temperatures": (1.0, 0.5, 0.0)}],
)  # fmt: skip
def test_nothing_to_compare_is_refused(fields) -> None:
    with pytest.raises(InputError):
        w7.ENTRY.run(w7.Config(**fields), silent)
