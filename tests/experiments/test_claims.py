"""Claims are judged by figures: each verdict is given where it should be, and nowhere else."""

import json
import math
from dataclasses import replace
from functools import cache
from typing import Any

import polars as pl
import pytest
import torch

from rankscope import figures
from rankscope.deep import deep_trace
from rankscope.errors import InputError
from rankscope.experiments import depths
from rankscope.experiments.claims import d1, d2, d3, d4, d5, d8, d9, n1
from rankscope.experiments.laws import Law
from rankscope.experiments.models import Case
from rankscope.experiments.progress import silent
from rankscope.experiments.variants import Reading
from rankscope.network import Network
from rankscope.paths import PathCounts, enumerate_paths
from rankscope.results import Fate, Finding, Result
from rankscope.theory import bounds
from rankscope.tracing import Trace

from .tiny import Fresh, Inward, Tiny

TEXTS = ("one two three four five six", "a rose is a flower")
SMALL = {"width": 16, "tokens": 8, "samples": 2}

TINY: dict[str, tuple[Any, Any]] = {
    "d1": (d1, d1.Config(layers=2, heads=2, width=4, tokens=3)),
    "d2": (d2, d2.Config(layers=6, heads=(1, 2), inits=("lecun",), **SMALL)),
    "d3": (d3, d3.Config(layers=6, heads=2, gains=(0.5, 2.0), **SMALL)),
    "d4": (d4, d4.Config(layers=6, strengths=(0.5, 1.0), kept=2, width=8, tokens=8, samples=2)),
    "d5": (d5, d5.Config(models=(Fresh("bert"),), texts=TEXTS, length=8)),
    "d8": (d8, d8.Config()),
    "d9": (d9, d9.Config(models=(Fresh("bert"),), texts=TEXTS, length=8, paths=3)),
    "n1": (
        n1,
        n1.Config(
            layers=20,
            patterns=tuple(each for each in n1.Config().patterns if each.name != "window mask"),
            **SMALL,
        ),
    ),
}
"""Every claim on something small on which it holds."""


@cache
def tiny(name: str) -> tuple[Result, list[float]]:
    """A tiny claim's result and what it reported on its way."""
    module, config = TINY[name]
    seen: list[float] = []
    return module.run(config, seen.append), seen


@pytest.mark.parametrize("name", TINY)
def test_claims_hold_where_they_should(name: str) -> None:
    found, _ = tiny(name)
    assert found.verdict == "holds", found.sentences
    assert found.id.lower() == name
    assert found.title == TINY[name][0].ENTRY.title
    assert found.question.endswith("?")
    assert all(sentence.endswith(".") for sentence in found.sentences)


@pytest.mark.parametrize("name", TINY)
def test_claims_report_their_progress_to_the_end(name: str) -> None:
    _, seen = tiny(name)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


@pytest.mark.parametrize("name", TINY)
def test_a_result_can_be_named_written_and_drawn(name: str) -> None:
    found, _ = tiny(name)
    config = TINY[name][1]
    assert found.stem == f"{name}-{config.digest(found.id)[:8]}"
    json.dumps(found.provenance)
    assert set(found.shown) <= set(found.table["metric"])
    assert all(math.isfinite(value) for value in found.key_figures.values())
    (drawing,) = found.drawings
    draw = getattr(figures, drawing.figure)
    if drawing.figure == "length_distributions":
        draw(found.table)
    else:
        draw(found.summary, metric=drawing.metric, **drawing.options)


@pytest.mark.parametrize("name", [name for name in TINY if name not in ("d5", "d8", "d9")])
def test_a_seed_changes_the_figures(name: str) -> None:
    module, config = TINY[name]
    if name == "n1":
        config = replace(config, patterns=config.patterns[:1])
    found = module.run(replace(config, seed=1), silent)
    before = tiny(name)[0].table.head(found.table.height)
    assert not found.table.equals(before)


# D1


def test_d1_depends_on_what_counts_as_rounding() -> None:
    """Each network misses by something: a tolerance of nothing is kept by none."""
    found, _ = tiny("d1")
    worst = found.table.group_by("model").agg(pl.max("value"))["value"].sort()
    between = (worst[0] + worst[-1]) / 2
    config = TINY["d1"][1]
    assert d1.run(replace(config, tolerance=between), silent).verdict == "depends"
    assert d1.run(replace(config, tolerance=0.0), silent).verdict == "fails"


def test_d1_notices_a_lost_path() -> None:
    network = Network.random(d1.KINDS["attention and skips"](3, 2, 4, init=0.5)).double()
    x = torch.randn(1, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    paths = list(enumerate_paths(3, 2))
    whole, short = (d1.errors(network, x, each) for each in (paths, paths[:-1]))
    assert whole["value"].max() < 1e-12
    assert short.filter(variant="single paths", layer=3)["value"].item() > 1e-4
    assert short.filter(variant="path lengths")["layer"].to_list() == [1, 2, 3]


# D2


def test_d2_fails_under_a_causal_mask_and_depends_on_depth() -> None:
    config = TINY["d2"][1]
    assert d2.run(replace(config, mask="causal"), silent).verdict == "fails"
    early = replace(config, layers=5, heads=(1,), inits=("lecun", "orthogonal"))
    found = d2.run(early, silent)
    assert found.verdict == "depends"  # the first has not come to its law yet
    low, high = found.key_figures.values()
    assert low == pytest.approx(3, abs=0.1)
    assert high > 3.1


def test_d2_is_borne_out_by_a_cube_below_bounds_alone() -> None:
    cubic, slower = (Law("doubly exponential", growth, -9.0, -99.0) for growth in (3.0, 2.5))
    assert d2.bears_out(cubic, above=0, checked=4)
    assert not d2.bears_out(cubic, above=1, checked=4)
    assert not d2.bears_out(cubic, above=0, checked=0)
    assert not d2.bears_out(slower, above=0, checked=4)


def test_d2_counts_every_layer_that_is_above_a_bound() -> None:
    x, token_mask = TINY["d2"][1].texts()
    network = Network.random(depths.pure(3, 1, 16, init="lecun")).double()
    found = bounds(network, x[:1], token_mask=token_mask[:1])
    none, checked = d2.count_above(found)
    raised = tuple(
        replace(layer, log10_residual=layer.log10_residual + 1e3) for layer in found.layers
    )
    assert none == 0 < checked
    assert d2.count_above(replace(found, layers=raised)) == (checked, checked)


# D3


def test_d3_fails_where_the_law_is_not_there_yet() -> None:
    assert d3.run(replace(TINY["d3"][1], layers=3), silent).verdict == "fails"


def test_d3_does_not_mind_the_order_of_gains() -> None:
    config = replace(TINY["d3"][1], gains=(2.0, 0.5), activations=("relu",))
    assert d3.run(config, silent).verdict == "holds"


def test_d3_is_borne_out_by_rising_cubes_alone() -> None:
    def ends(*values: float, growth: float = 3.0) -> list[Law]:
        return [Law("doubly exponential", growth, -9.0, last) for last in values]

    assert d3.bears_out(ends(-300.0, -200.0, -200.0))
    assert not d3.bears_out(ends(-200.0, -300.0))
    assert not d3.bears_out(ends(-300.0, -200.0, growth=2.8))


def test_d3_says_how_steep_the_mlps_are() -> None:
    sentences = tiny("d3")[0].sentences
    assert sentences[0].startswith("no MLP")
    slopes = [float(each.split("at most ")[1].split(",")[0]) for each in sentences[1:]]
    assert slopes[1] == pytest.approx(4 * slopes[0], rel=0.01)
    assert slopes[3] == pytest.approx(4 * slopes[2], rel=0.01)


# D4


def test_d4_fails_where_nothing_is_lost_without_skips() -> None:
    """Attention as sharp as this copies tokens, and values of this size keep them large."""
    config = d4.Config(
        layers=6, strengths=(1.0, 1e4), values=3.0, kept=2, width=8, tokens=4, samples=1
    )
    assert d4.run(config, silent).verdict == "depends"
    assert d4.run(replace(config, strengths=(1e4,)), silent).verdict == "fails"


def test_d4_notices_one_sample_below_its_floor() -> None:
    floor = {0: 1.0, 1: 2.0}
    assert d4.never_below({0: 1.0, 1: 2.5}, floor)
    assert not d4.never_below({0: 3.0, 1: 1.99}, floor)


# D5 and D9


def test_d5_tells_every_model_and_variant() -> None:
    config = replace(TINY["d5"][1], models=(Fresh("bert"), Fresh("gpt2")))
    found = d5.run(config, silent)
    assert found.verdict == "depends"
    assert found.table.columns == ["model", "variant", "layer", "sample", "metric", "value"]
    assert found.table["sample"].unique().to_list() == [0, 1]
    bert, gpt2 = found.sentences
    assert bert.startswith("bert (init): relative residual after 3 layers: SAN ")
    assert bert.count("(collapse)") == bert.count("(holds)") == 2
    assert gpt2.count("(holds)") == 4  # before the norms, and behind a causal mask


def test_d5_fails_where_skips_do_not_hold() -> None:
    found = d5.run(replace(TINY["d5"][1], models=(Tiny("bert"),)), silent)
    assert found.verdict == "fails"
    assert "SAN+skip" in found.sentences[0].split("(slow)")[0]


def test_d5_takes_away_what_it_is_told_to() -> None:
    kept, _ = tiny("d5")
    found = d5.run(replace(TINY["d5"][1], reading=Reading(norms="drop")), silent)
    assert not found.table.equals(kept.table)
    assert "norms dropped" in found.provenance["variants"]
    assert "norms dropped" in found.drawings[0].caption


FATES: list[tuple[tuple[Fate, Fate, Fate, Fate], bool]] = [
    (("collapse", "collapse", "holds", "holds"), True),
    (("slow", "collapse", "holds", "holds"), False),
    (("collapse", "slow", "holds", "holds"), False),
    (("collapse", "collapse", "slow", "holds"), False),
    (("collapse", "collapse", "holds", "collapse"), False),
]


@pytest.mark.parametrize(("fates", "borne_out"), FATES)
def test_d5_is_borne_out_by_skips_alone(fates: tuple[Fate, ...], borne_out: bool) -> None:
    names = ("SAN", "SAN+MLP", "SAN+skip", "transformer")
    found = [Finding(name, fate, "", 1.0, 1.0, 12) for name, fate in zip(names, fates, strict=True)]
    assert d5.bears_out(found) is borne_out


@pytest.mark.parametrize("name", ["d5", "d9"])
def test_the_texts_that_are_given_are_read(name: str) -> None:
    module, config = TINY[name]
    found, _ = tiny(name)
    other = module.run(replace(config, texts=("quite another text",)), silent)
    bundled = module.run(replace(config, texts=None, samples=1), silent)
    figures_of = [each.table["value"].to_list() for each in (found, other, bundled)]
    assert figures_of[0] != figures_of[1] != figures_of[2]


@pytest.mark.parametrize("name", ["d5", "d9"])
def test_models_called_alike_stay_apart_and_none_is_refused(name: str) -> None:
    module, config = TINY[name]
    found = module.run(replace(config, models=(Fresh("bert"), Tiny("bert"))), silent)
    assert found.table["model"].unique(maintain_order=True).to_list() == [
        "bert (init)",
        "bert (init) 2",
    ]
    assert len(found.sentences) == 2
    with pytest.raises(InputError, match="no model to try"):
        module.run(replace(config, models=()), silent)


@pytest.mark.parametrize("name", ["d5", "d9"])
def test_the_papers_models_are_tried_unless_others_are_named(name: str) -> None:
    config = TINY[name][0].Config()
    assert config.models == (Case("bert-base"), Case("albert-base-v2"), Case("xlnet-base"))
    assert config.texts is None
    assert config.samples == {"d5": 32, "d9": 1}[name]


def test_d9_fails_where_no_token_looks_at_another() -> None:
    config = TINY["d9"][1]
    assert d9.run(replace(config, models=(Inward("bert"),)), silent).verdict == "fails"
    both = d9.run(replace(config, models=(Fresh("bert"), Inward("bert"))), silent)
    assert both.verdict == "depends"
    found, _ = tiny("d9")
    assert len(found.table) == 3 * 2 * 3 * 2  # paths, texts, depths, metrics
    assert found.table.filter(metric="relative_residual", layer=3)["sample"].n_unique() == 6
    (quoted,) = found.key_figures.values()
    ends = found.table.filter(metric="relative_residual", layer=3)["value"]
    assert quoted == pytest.approx(ends.mean())


# D8


def test_d8_counts_the_papers_architectures() -> None:
    found, _ = tiny("d8")
    gpt3 = found.table.filter(model="GPT-3 (96, 96)")
    assert len(gpt3) == 97
    assert gpt3["value"].sum() == pytest.approx(1.0)
    assert gpt3.sort("value")["length"][-1] == 95  # 96 · 96/97 on average
    assert len(found.sentences) == 9
    assert "mean length 95.01" in found.sentences[-1]


def test_d8_notices_a_lost_path_and_a_wrong_mean() -> None:
    class Lost(PathCounts):
        total = property(lambda self: sum(self.counts) - 1)  # type: ignore[assignment]

    class Short(PathCounts):
        counts = property(lambda _: (9, 6, 1))  # type: ignore[assignment]

    assert d8.as_stated(PathCounts(2, 3))
    assert not d8.as_stated(Lost(2, 3))
    assert not d8.as_stated(Short(2, 3))


# N1


def test_n1_fails_where_the_laws_are_the_other_way_round() -> None:
    wrong = n1.Pattern("called pairwise", rows_agree=False)
    right = n1.Pattern("absolute positions", rows_agree=True)
    config = replace(TINY["n1"][1], patterns=(right, wrong))
    assert n1.run(config, silent).verdict == "depends"
    assert n1.run(replace(config, patterns=(wrong,)), silent).verdict == "fails"


# What cannot be tried


@pytest.mark.parametrize(
    ("name", "nothing", "message"),
    [
        ("d1", {"kinds": ("nonsense",)}, "no kind of network 'nonsense'; choose pure attention"),
        ("d1", {"kinds": ()}, "no table to join"),
        ("d2", {"heads": ()}, "no table to join"),
        ("d3", {"gains": ()}, "gains is empty"),
        ("d3", {"activations": ()}, "no case was tried"),
        ("d8", {"architectures": ()}, "no case was tried"),
        ("d9", {"paths": 0}, "paths=0"),
        ("n1", {"patterns": ()}, "no table to join"),
    ],
)
def test_a_claim_is_not_judged_by_nothing(name: str, nothing: Any, message: str) -> None:
    module, config = TINY[name]
    with pytest.raises(InputError, match=message):
        module.run(replace(config, **nothing), silent)


# What is in doubt


@pytest.mark.parametrize("name", ["d2", "d3", "d4", "n1"])
def test_doubts_reach_the_sentences_and_the_provenance(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = set()

    def doubtful(network: Network, *arguments: Any, **options: Any) -> Trace:
        seeds.add(network.seed)
        return deep_trace(network, *arguments, **options).noted({"doubt": "a digit was lost"})

    monkeypatch.setattr(depths, "deep_trace", doubtful)
    module, config = TINY[name]
    fewer = {
        "d2": {"heads": (1,)},
        "d3": {"activations": ("relu",), "gains": (1.0,)},
        "d4": {"strengths": (1.0,)},
        "n1": {"patterns": config.patterns[:1] if name == "n1" else ()},
    }[name]
    found = module.run(replace(config, seed=5, **fewer), silent)
    assert seeds == {None if name == "d4" else 5}  # D4 is made of matrices of its own
    noted = found.provenance["notes"]
    assert set(noted) == set(found.table["variant"])
    for variant in noted:
        assert f"Note on {variant}: a digit was lost." in found.sentences
