"""Claim D4: with skips there are infinitely many networks whose residual does not shrink."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from rankscope import tables
from rankscope.core.network import Init, Network, Spec
from rankscope.core.theory import Law, expanding_network
from rankscope.experiments import depths, kit
from rankscope.experiments.laws import medians
from rankscope.numerals import plural, power_of_ten, short

ENTRY = kit.claim(
    "D4",
    "Skips stop the collapse: there are infinitely many parameterisations whose residual does not "
    "shrink at any depth, however small the weights.",
    source="Dong et al. 2021, claim 3.1",
    domain="attention and skips, without MLPs and norms",
    seconds=19,
)
_METRIC = "log10_residual"
_ROUNDING = 1e-9
"""Decades."""
EXPANDING, BARE, RANDOM = "every head expands a feature", "the same without skips", "random weights"
_BEYOND = "random weights with skips, no construction"


@dataclass(frozen=True)
class Config(depths.DeepConfig):
    """Networks with skips in which every head expands one feature; β is as small as one likes.

    The largest ``‖W_QK‖₁`` is ``strength``, so that attention depends on the tokens however small β
    is: all of β's smallness is in the values.
    """

    layers: int = 64
    width: int = 16
    betas: tuple[float, ...] = (1e-1, 1e-3, 1e-6, 1e-9, 1e-12)
    controls: tuple[float, ...] = (1e-1, 1e-3)
    """Those that are also run without their skips."""
    strength: float = 1.0
    random_heads: int = 4
    random_scales: tuple[float, ...] = (0.1, 0.3, 1.0, 2.0)
    """LeCun's weights times these, beyond the claim."""


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Members of a family with β from large to tiny, each without its skips, and random networks.

    Residuals are about the medians. The construction lowers them in no layer, nor those about the
    best center (see ``expanding_network``), so that a residual at the medians which is never below
    the input's is what claim 3.1 asks for.
    """
    x, token_mask = config.texts()
    made = {
        beta: expanding_network(
            config.layers, config.width, beta=beta, strength=config.strength, seed=config.seed
        )
        for beta in (*config.betas, *config.controls)
    }
    networks = {
        **{_name(EXPANDING, beta): made[beta] for beta in config.betas},
        **{_name(BARE, beta): made[beta].without("skip") for beta in config.controls},
        **{f"{RANDOM}, {_scale(scale)}": _random(config, scale) for scale in config.random_scales},
    }
    compared = depths.compare(networks, x, token_mask, center="median", on_step=on_step)
    judgement, beyond, sentences = judge(config, compared.table)
    kept = [least_kept(compared.table, _name(EXPANDING, beta)) for beta in config.betas]
    return ENTRY.result(
        config,
        question="Does some network with skips keep its input's residual however small β is, and "
        "is it lost without the skips?",
        sentences=sentences,
        table=compared.table,
        listings=(_listing(config, compared.table),),
        about={"residuals": "composite norm, about the medians"},
        notes=compared.notes,
        judgement=judgement,
        beyond=beyond,
        key_figures={"residual over the input's, smallest of all layers": 10 ** min(kept)},
        drawings=(
            kit.Drawing("by_depth", "A curve for each network.", _METRIC, {"lowest": -30.0}),
        ),
        shown=(_METRIC, depths.RELATIVE),
    )


def judge(
    config: Config, table: pl.DataFrame
) -> tuple[kit.Judgement, kit.Judgement | None, tuple[str, ...]]:
    """Claim 3.1's own inequality in every layer and sample, for each β; the same for random ones.

    The claim is borne out by a β whose residual is never below the input's, and by controls that
    collapse: the same weights without skips.
    """
    found = depths.laws(tables.summary(table), _METRIC)
    kept = {name: least_kept(table, name) for name in found}
    cases = {_name(EXPANDING, beta): kept[_name(EXPANDING, beta)] for beta in config.betas}
    borne_out = {name: value >= -_ROUNDING for name, value in cases.items()} | {
        _name(BARE, beta): found[_name(BARE, beta)].collapses for beta in config.controls
    }
    scales = {f"{RANDOM}, {_scale(scale)}": scale for scale in config.random_scales}
    on = f"for β down to {short(min(config.betas))}" if all(borne_out.values()) else ""
    return (
        kit.judged(ENTRY.domain, borne_out, on),
        _beyond(table, {name: kept[name] for name in scales}) if scales else None,
        _sentences(config, kept, found),
    )


def _beyond(table: pl.DataFrame, kept: Mapping[str, float]) -> kit.Judgement:
    """Whether random networks keep their input's residual too; relative ones are another matter."""
    lowest = min(_ends(table, name)[1] for name in kept)
    borne_out = {name: value >= -_ROUNDING for name, value in kept.items()}
    words = (
        f"residuals stay above {power_of_ten(min(kept.values()))} of the input's, but relative "
        f"ones end as low as {power_of_ten(lowest)}"
    )
    mixed = len(set(borne_out.values())) > 1
    return kit.judged(_BEYOND, borne_out, f"the weights: {words}" if mixed else words)


def least_kept(table: pl.DataFrame, variant: str) -> float:
    """The smallest residual of any layer over the input's, in decades, of the worst sample."""
    rows = table.filter(metric=_METRIC, variant=variant)
    at_input = rows.filter(layer=0).select("sample", first="value")
    later = rows.filter(pl.col("layer") > 0).join(at_input, on="sample")
    least: float = min((later["value"] - later["first"]).to_list())
    return least


def _random(config: Config, scale: float) -> Network:
    spec = Spec(
        config.layers,
        config.random_heads,
        config.width,
        mlp_ratio=0.0,
        norm="none",
        skip=True,
        init=Init("lecun", scale),
    )
    return Network.random(spec, seed=config.seed)


def _name(kind: str, beta: float) -> str:
    return f"{kind}, β = {short(beta)}"


def _scale(scale: float) -> str:
    return f"LeCun × {scale:g}"


def _ends(table: pl.DataFrame, name: str) -> tuple[float, float]:
    """The relative residual at the input and in the end, by the medians over the samples."""
    curve = medians(tables.summary(table), depths.RELATIVE, variant=name)
    return curve[0], curve[-1]


def _sentences(
    config: Config, kept: Mapping[str, float], found: Mapping[str, Law]
) -> tuple[str, ...]:
    never = sum(kept[_name(EXPANDING, beta)] >= -_ROUNDING for beta in config.betas)
    bare = [found[_name(BARE, beta)] for beta in config.controls]
    gone = sum(each.collapses for each in bare)
    return (
        "With skips and every head expanding one feature no layer of any sample has a residual "
        f"below its input's for {never} of {len(config.betas)} β.",
        f"Without the skips {gone} of {len(bare)} such networks collapse.",
    )


def _listing(config: Config, table: pl.DataFrame) -> kit.Listing:
    """How each network ends: its residual beside the input's, and relative to the tokens."""
    found = depths.laws(tables.summary(table), _METRIC)
    rows = []
    for name, law in found.items():
        least = least_kept(table, name)
        last = _ends(table, name)[1]
        rows.append((name, _signed(least), power_of_ten(law.last), power_of_ten(last), law.name))
    return kit.Listing(
        f"Residuals over {plural(config.layers, 'layer')}",
        ("network", "least change", "residual in the end", "relative residual", "law"),
        tuple(rows),
        "The least change is by which part of the input's residual the lowest of any layer and "
        "sample is above it (below it where negative); the others are medians over the samples.",
    )


def _signed(log10: float) -> float:
    """By which part of one a power of ten is above it."""
    return math.expm1(log10 * math.log(10))
