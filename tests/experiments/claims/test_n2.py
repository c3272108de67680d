"""The constant βH: what is computed, how it is judged, and what the search climbs on."""

import math
from dataclasses import replace

import polars as pl
import pytest
import torch

from rankscope import tables
from rankscope.core.metrics import residual
from rankscope.core.network import Network
from rankscope.core.theory import TwoHeadLayer, bounds, find_best_center
from rankscope.experiments import kit
from rankscope.experiments.claims import n2
from rankscope.process.progress import silent

from .small import TINY, tiny


def made_up(paper: dict[int, float], proved: float = 0.2, found: float = 0.1) -> pl.DataFrame:
    rows = [(n2.PAPER_CONSTANT, width, ratio) for width, ratio in paper.items()]
    rows += [(n2.PROVED_CONSTANT, width, proved) for width in paper]
    rows.append((n2.SEARCHES[1], 6, found))
    return tables.from_rows(
        ("variant", "setting", "metric", "value"),
        [(name, width, "bound_ratio", ratio) for name, width, ratio in rows],
    )


@pytest.mark.parametrize(
    ("table", "verdict"),
    [
        (made_up({50: 0.9, 2000: 1.01}), "holds"),
        (made_up({50: 0.9, 2000: 0.99}), "depends"),
        (made_up({50: 0.9, 2000: 1.01}, proved=1.01), "depends"),
        (made_up({50: 1.01, 2000: 1.01}), "depends"),
        (made_up({50: 0.9, 2000: 1.01}, found=1.01), "depends"),
        (made_up({50: 1.0, 2000: 1.0}, proved=2.0, found=2.0), "fails"),
    ],
)
def test_each_outcome(table: pl.DataFrame, verdict: str) -> None:
    found = kit.conclude(n2.ENTRY, n2.Config(), table)
    assert found.verdict == verdict
    assert ("exceeded at 2,000 features" in str(found.judgement)) == (verdict == "holds")
    assert all(sentence.endswith(".") for sentence in found.sentences)


@pytest.mark.parametrize(
    ("noted", "inf", "verdict"),
    [(1.1, 0.9, "holds"), (0.9, 0.9, "depends"), (1.1, 1.1, "depends"), (0.9, 1.1, "fails")],
)
def test_the_readers_note_lies_beyond(noted: float, inf: float, verdict: str) -> None:
    table = made_up({50: 0.9, 2000: 1.01})
    assert n2.judge(n2.Config(), table).beyond is None
    rows = [
        (name, 64, "bound_ratio", ratio) for name, ratio in ((n2.NOTED, noted), (n2.NOTED_INF, inf))
    ]
    more = tables.from_rows(("variant", "setting", "metric", "value"), rows)
    result = kit.conclude(n2.ENTRY, n2.Config(), pl.concat([table, more], how="diagonal"))
    assert result.verdict == "holds"
    assert result.beyond is not None
    assert result.beyond.verdict == verdict
    assert ("exceeded from 64 features on" in str(result.beyond)) == (verdict == "holds")


def test_one_tall_head_is_what_the_sums_by_hand_say() -> None:
    """The residual is that of one entry, 2bδ; the bound 4κ/√2 · (2(b + 2))^1.5, κ = D√2/4b."""
    config, small = n2.Config(), 0.05
    ratios = {(name, width): ratio for name, width, ratio in n2._noted(config)}
    for width in config.noted:
        b = width - 3
        by_hand = b * math.tanh(small / 2) / (small / b * (2 * (b + 2)) ** 1.5)
        assert ratios[n2.NOTED, width] == pytest.approx(by_hand, rel=1e-3)
        assert ratios[n2.NOTED_INF, width] < 0.25
    assert ratios[n2.NOTED, 32] < 1 < ratios[n2.NOTED, 41]
    assert math.isclose(max(ratios.values()), ratios[n2.NOTED, 512])


def test_the_ceiling_is_one_between_125_and_126_features() -> None:
    assert n2.SAFE_WIDTH == 125
    assert n2.ceiling(125) < 1 < n2.ceiling(126)
    assert n2.ceiling(125) == pytest.approx((math.sqrt(125) + 1 / math.sqrt(125)) / 11.3137085)


def test_the_table_holds_the_ratios_of_the_construction() -> None:
    found, _ = tiny("n2")
    ratios = dict(found.table.filter(variant=n2.PAPER_CONSTANT).select("setting", "value").rows())
    for width, ratio in ratios.items():
        made = TwoHeadLayer(int(width), 1500)
        assert ratio == made.residual / made.paper_bound
    assert ratios[20_000.0] == pytest.approx(1.0074, abs=1e-4)
    assert found.key_figures == {
        "residual over the bound with βH, largest": ratios[20_000.0],
        "smallest width at which it is above": 15_887.0,
    }


def test_the_open_widths_end_where_the_construction_begins_to_exceed() -> None:
    """By what it tends to for many tokens and D → 0, worked out by hand, and not a size tried.

    Output norms 2bδ(1 + 1/√d) and 2bδ(1 + d/√d) with δ = D/4; the bound 4·2κ√b·(2(b + 2))^1.5/√2
    with κ = D√2/4b.
    """
    tokens, small = n2.Config().many

    def ratio(d: int) -> float:
        b = d - 3
        output = 0.5 * b * math.sqrt((1 + d**-0.5) * (1 + d**0.5))
        return output / (2 * (2 * (b + 2)) ** 1.5 / math.sqrt(b))

    first = n2.first_width(tokens, small)
    assert first == next(d for d in range(15_000, 17_000) if ratio(d) > 1)
    widths = [*range(5, first, 401), first - 1]
    layers = [TwoHeadLayer(width, tokens, small) for width in widths]
    assert all(each.residual <= each.paper_bound for each in layers)
    found, _ = tiny("n2")
    assert "Whether βH can fail from 126 to 15,886 features is open." in found.sentences
    assert str(found.judgement) == "Supported: βH is exceeded at 15,887 features and more"


def test_a_search_where_the_proof_holds_is_called_a_control() -> None:
    control = "Up to 125 features the search is a control of the code, not evidence"
    assert tiny("n2")[0].sentences[-1] == f"{control}."
    assert max(n2.Config().search.widths) > n2.SAFE_WIDTH
    table = made_up({50: 0.9, 2000: 1.01})
    wide = table.with_columns(
        pl.when(pl.col("variant") == n2.SEARCHES[1]).then(200).otherwise("setting").alias("setting")
    )
    *_, last = kit.conclude(n2.ENTRY, n2.Config(), wide).sentences
    assert last == f"{control}; at 200 finding no counterexample proves nothing."


def test_scores_that_never_exceed_are_refused() -> None:
    with pytest.raises(Exception, match="use a smaller D"):
        n2.first_width(1500, 100.0)


def test_two_runs_are_equal() -> None:
    module, config = TINY["n2"]
    assert module.ENTRY.run(config, silent).table.equals(tiny("n2")[0].table)


def test_the_search_climbs_on_the_theorems_own_ratio() -> None:
    """Against the network as a whole, whose output knows neither P − 1qᵀ nor a chosen center."""
    generator = torch.Generator().manual_seed(0)
    query_key, values = torch.randn(2, 1, 2, 7, 7, generator=generator, dtype=torch.float64)
    x = torch.randn(1, 5, 7, generator=generator, dtype=torch.float64)
    network = Network.from_matrices(0.01 * query_key, values, head_width=4)
    (layer,) = bounds(network, x).layers
    plan = replace(n2.Search(), score_difference=10 ** layer.log10_score_difference.item())
    parts = {
        "tokens": x[0],
        "query": torch.zeros(2, 7, dtype=torch.float64),
        "query_key": query_key[0],
        "values": values[0],
    }
    weights, tokens = n2._layer(plan, parts)
    weights = replace(weights, query_key=0.01 * query_key[0], scale=0.5)
    center = x[0].median(0).values
    best = find_best_center(center[None], tokens.mantissa, tokens.log_scale)
    bound = 10**layer.log10_a_priori_bound * layer.paper_beta / layer.beta
    least = residual(network(x), center="optimal") / bound
    ratio = n2.paper_ratio(weights, best.tokens)
    assert least.item() <= ratio <= 2 * least.item()


def test_the_search_never_ends_below_where_it_starts() -> None:
    plan = replace(n2.Search(), steps=0)
    start = n2.climb(plan, 8, 0, start=0, on_step=silent)
    made = TwoHeadLayer(8, plan.tokens)
    assert start == pytest.approx(made.output.composite / made.paper_bound, rel=1e-3)
    random, climbed = (
        n2.climb(replace(plan, steps=steps), 8, 0, start=1, on_step=silent) for steps in (0, 200)
    )
    assert climbed > 5 * random
