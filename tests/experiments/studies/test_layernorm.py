"""LayerNorm: what a residual's fate is, in which format, and what the search counts."""

from dataclasses import replace
from io import StringIO
from statistics import median

import polars as pl
import pytest
import torch
from rich.console import Console

from rankscope.experiments import kit, norm_outcomes
from rankscope.experiments.depths import Passages
from rankscope.experiments.norm_cases import FACTORS, NormSetting, random_network
from rankscope.experiments.norm_outcomes import Searched
from rankscope.experiments.studies.layernorm import ENTRY, Config
from rankscope.numerals import power_of_ten
from rankscope.show.report import show

from ..shown import can_be_shown, steps_of
from .curves import FALLING, LEVEL, curves

SMALL = NormSetting(heads=2, width=8, tokens=8)
SPLIT = 2
"""A seed under which some samples end on two poles and some do not."""
POLES = NormSetting(heads=1, width=4, logits=64.0, tokens=16, shared=True)
FEW = Config(
    layers=48,
    factors=(("few", (("full", SMALL), ("causal", replace(SMALL, mask="causal")))),),
    sweeps=(("narrow", NormSetting(heads=1, width=4, tokens=16)),),
    scales=(16.0, 64.0),
    search_layers=48,
    draws=2,
)


@pytest.fixture(scope="module")
def found():
    return steps_of(ENTRY.run, FEW)[0]


@pytest.fixture(scope="module")
def corner():
    """A collapsing case and one in which the tokens end on two poles."""
    factors = (("corner", (("full", SMALL), ("poles", POLES))),)
    return steps_of(ENTRY.run, Config(seed=SPLIT, layers=12, deeper=2, factors=factors, sweeps=()))[
        0
    ]


def test_the_study_can_be_shown(found, corner) -> None:
    can_be_shown(found)
    can_be_shown(corner)
    assert dict(found.all_drawings[0].roles) == {"float64": "floor", "float32": "floor"}
    rows = found.summary.filter(pl.col("metric") == "log10_relative_dispersion")
    assert rows["model"].unique(maintain_order=True).to_list() == ["full", "causal"]
    assert rows["variant"].unique(maintain_order=True).to_list() == ["scaled", "float64", "float32"]
    assert found.provenance["config"]["scales"] == [16.0, 64.0]


def test_only_scaled_arithmetic_sees_the_collapse_go_on(found) -> None:
    ends = norm_outcomes.outcomes(found.table)
    full, causal = ends["full"], ends["causal"]
    assert str(full.law).startswith("doubly exponential: each step is 3.00")
    assert max(full.last["scaled"]) < -1e15
    assert causal.stops["scaled"] == causal.stops["float64"] == (False,) * 3
    assert causal.stops["float32"] == (True,) * 3
    assert max(causal.last["scaled"]) < -12  # uniform causal attention halves it: 48 · log10(2)
    assert -8.5 < min(causal.last["float32"]) <= max(causal.last["float32"]) < -5.5


def test_residuals_are_those_of_the_frobenius_norm(found) -> None:
    x, mask = Passages(8, 8, 3, 0)()
    with torch.no_grad():
        y = random_network(SMALL, 1, 0)(x, mask)
    spread = torch.linalg.matrix_norm(y - y.mean(1, keepdim=True)) / torch.linalg.matrix_norm(y)
    for form in ("scaled", "float64"):
        rows = found.table.filter(
            model="full", variant=form, layer=1, metric="log10_relative_dispersion"
        )
        assert rows.sort("sample")["value"].to_list() == pytest.approx(spread.log10().tolist())


def test_tokens_that_stay_apart_are_followed_deeper_and_sit_on_two_poles(corner) -> None:
    poles = norm_outcomes.outcomes(corner.table)["poles"]
    assert poles.layers == 2 * 2 * 12
    x, mask = Passages(4, 16, 3, SPLIT)()
    with torch.no_grad():
        states = random_network(POLES, 60, SPLIT)(x, mask)
    stay = [bool((y - y[0]).abs().max() > 0.1) for y in states]
    assert poles.stops["scaled"] == tuple(stay)
    assert 0 < sum(stay) < 3
    assert poles.ranks == pytest.approx([1.0] * sum(stay), abs=1e-6)
    assert [apart == poles.layers for apart in poles.apart_for] == stay
    for y in states[torch.tensor(stay)]:
        signs = (y / y[0]).mean(-1)
        assert {round(s) for s in signs.tolist()} == {1, -1}
        torch.testing.assert_close(y, signs[:, None].round() * y[0])


def test_one_sample_that_stays_apart_is_not_lost_in_the_median() -> None:
    ends = norm_outcomes.outcomes(curves(some=[FALLING, LEVEL, FALLING], every=[LEVEL] * 3))
    assert ends["some"].stops["scaled"] == (False, True, False)
    assert ends["some"].ranks == (2.0,)
    assert ends["some"].law.kind == "exponential"
    assert ends["some"].law.rate == pytest.approx(-0.5)
    assert ends["every"].ranks == (1.0, 2.0, 3.0)
    assert ends["every"].law is None
    assert norm_outcomes.high_ranks(ends) == 3
    (said,) = norm_outcomes.poles(ends)
    assert said.startswith("Samples that stay apart: 4, of which 1 with tokens on two opposite")


def test_a_stall_is_not_taken_for_the_end() -> None:
    """Fresh layers may keep tokens apart for long and then not."""
    late = [*[0.0] * 30, -3.0, -9.0, -27.0]
    ends = norm_outcomes.outcomes(curves(late=[late], early=[[0.0, -1.0, *[-3.0] * 31]]))
    assert ends["late"].stops["scaled"] == (False,)
    assert ends["late"].apart_for == (29,)
    assert ends["early"].apart_for == (1,)
    (said,) = norm_outcomes.stall(ends)
    assert "in the case late tokens still differed after 29 of 32 layers, and then" in said
    assert list(norm_outcomes.stall(norm_outcomes.outcomes(curves(case=[LEVEL])))) == []


@pytest.mark.parametrize(
    ("log10", "stay"), [(LEVEL, True), (FALLING, False), ([-2.5] * 9, False), ([-1.5] * 9, True)]
)
def test_a_small_residual_has_no_level_to_stay_at(log10: list[float], stay: bool) -> None:
    assert norm_outcomes.stays(log10) is stay
    level = log10[0] == log10[-1]
    one = norm_outcomes.outcomes(curves(case=[log10]))["case"]
    assert one.stops == {"scaled": (stay,), "float64": (level,), "float32": (level,)}


def test_search_counts_what_a_plain_run_counts(found) -> None:
    counted = {
        (one.setting.shared, one.setting.logits): one
        for one in norm_outcomes.search_counts(found.summary, dict(FEW.sweeps))
    }
    assert len(counted) == 2 * 2
    expected, ranks = 0, []
    narrow = NormSetting(heads=1, width=4, tokens=16, logits=16.0, shared=True)
    for seed in range(2):
        x, mask = Passages(4, 16, 3, seed)()
        with torch.no_grad():
            y = random_network(narrow, 48, seed)(x, mask)
        spread = torch.linalg.matrix_norm(y - y.mean(1, keepdim=True)) / torch.linalg.matrix_norm(y)
        expected += int((spread > 0.01).sum())
        singular = torch.linalg.svdvals(y[spread > 0.01]).square()
        ranks += (singular.sum(-1) / singular[:, 0]).tolist()
    one = counted[True, 16.0]
    assert one == Searched("narrow", narrow, 6, expected, one.rank)
    assert one.rank == pytest.approx(median(ranks))
    assert 0 < counted[True, 64.0].apart < 6
    drawn = found.summary.filter(pl.col("metric") == "share_still_apart")
    for variant, logits, share in drawn.select("variant", "setting", "median").iter_rows():
        assert share == pytest.approx(counted[variant == norm_outcomes.REPEATED, logits].apart / 6)


def test_a_search_is_summed_up() -> None:
    settings = [replace(SMALL, logits=scale) for scale in (1.0, 4.0, 16.0, 64.0)]
    apart = (0, 1, 2, 3)
    found = [
        Searched("net", setting, 3, count, 1.0)
        for setting, count in zip(settings, apart, strict=True)
    ]
    first, second = norm_outcomes.search_domain(found, 60)
    assert first.startswith("A search over 4 settings, each with 3 runs of 60 layers")
    assert second == (
        "At least one run is still apart in 3 of 4 settings; more than half of the runs in 2, "
        "always with logits × 16 or more; all runs in 1; their median stable rank is 1.00."
    )
    assert list(norm_outcomes.search_domain([], 60)) == []


def test_traits_are_what_sets_settings_apart() -> None:
    tried = [NormSetting(width=w, mask=m) for w in (4, 8, 64) for m in ("full", "causal")]
    assert norm_outcomes.traits(tried, tried) == ""
    assert norm_outcomes.traits([], tried) == ""
    assert norm_outcomes.traits(tried[:4], tried) == ", always with 8 features or less"
    assert norm_outcomes.traits(tried[2:4], tried) == ", always with 8 features"
    assert norm_outcomes.traits(tried[::2], tried) == ", always with full mask"
    repeated = [replace(tried[0], shared=True)]
    assert norm_outcomes.traits(repeated, [*tried[:2], *repeated]).endswith("one layer repeated")


def test_sentences_name_domain_and_noise(found) -> None:
    first, *_, last = found.sentences
    assert first == "Tokens collapse in every sample of all 2 cases."
    counts = {
        form: sum(sum(one.stops[form]) for one in norm_outcomes.outcomes(found.table).values())
        for form in ("float64", "float32")
    }
    assert counts["float32"] > counts["float64"]
    assert last == (
        f"Plain formats alone would report that it stops, float64 in {counts['float64']} and "
        f"float32 in {counts['float32']} of the 6 samples in which it continues (2 cases, "
        "6 samples in all)."
    )
    assert len(found.sentences) <= 5
    assert found.parts[-1].sentences[0].startswith("A search over 4 settings, each with 6")


def test_every_case_is_a_row_of_its_factor(found, corner) -> None:
    (listing,) = found.parts[0].listings
    assert [row[0] for row in listing.rows] == ["full", "causal"]
    full = dict(zip(listing.columns, listing.rows[0], strict=True))
    assert (full["stay apart"], full["law"]) == ("0 of 3", "doubly exponential")
    ends = norm_outcomes.outcomes(found.table)["full"].last["scaled"]
    assert full["in the end"] == f"{power_of_ten(min(ends))} to {power_of_ten(max(ends))}"
    poles = norm_outcomes.outcomes(corner.table)["poles"]
    row = corner.parts[0].listings[0].rows[1]
    assert row[:3] == ("poles", 48, f"{poles.staying} of 3, rank 1.00")


def test_the_study_fits_on_two_screens() -> None:
    """All cases with their full names, and a search; a wide terminal would need fewer lines."""
    names = Config().cases
    table = curves(**{name: [FALLING, LEVEL, FALLING] for name in names})
    told = Console(width=80, record=True, file=StringIO())
    found = kit.conclude(ENTRY, Config(sweeps=()), kit.Measured(table))
    show(found, told)
    assert len(told.export_text().splitlines()) <= 85


def test_no_two_cases_differ_by_the_scale_of_values_only() -> None:
    """LayerNorm removes it: weights × c are logits × c²."""
    settings = Config().cases
    assert len(set(settings.values())) == len(settings) == sum(len(group) for _, group in FACTORS)
    assert all(isinstance(setting.init, str) for setting in settings.values())


def test_settings_reach_the_network() -> None:
    bare = random_network(SMALL, 2, 0)
    full = random_network(NormSetting(heads=2, width=8, biases=2.0, gains=0.5, logits=3.0), 2, 0)
    first = full.blocks[0]
    assert first.attention.query.bias.std() > 0.5
    assert bool((bare.blocks[0].attention.query.bias == 0).all())
    assert bool((first.norms["attention"].weight > 0).all())
    assert first.norms["attention"].weight.std() > 0.1
    assert full.spec.score_scale == pytest.approx(3 / 2)
    assert full.spec.skips == (0.0, 0.0)
    deeper = random_network(NormSetting(heads=2, width=8, biases=2.0), 4, 0)
    again = random_network(NormSetting(heads=2, width=8, biases=2.0), 2, 0)
    for name, weight in again.state_dict().items():
        assert torch.equal(weight, deeper.state_dict()[name])
