"""What Wu et al. 2024 promise of masked attention, as a number for every layer.

Derived, with the constant that the theorem leaves open. A product of r layers' attention in which
some token's column is full has at least ε^r in that column, so it leaves at most ``1 − ε^r`` of the
distance between any two tokens; values multiply distances by at most their spectral norm. With D
the largest distance between two input tokens, ``μ² = Σ_ij ‖x_i − x_j‖² / 2n ≤ (n/2)·max distance²``
gives ``μ(t) ≤ √(n/2)·D·Π‖W‖·Π(1 − ε^r)``. Nothing here asks that all layers have the same mask.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import cast

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.core.masks import Mask
from rankscope.core.network import Block, Network
from rankscope.core.paths import attention_patterns
from rankscope.core.theory import (
    SMOOTH,
    UNEVEN,
    Law,
    a_priori_log_loss,
    as_stated,
    graph_facts,
    smallest_allowed_weight,
)
from rankscope.experiments import depths, kit
from rankscope.numerals import power_of_ten

PROMISED, SMALLEST = "log10_promised_dispersion", "smallest_weight"


@dataclass(frozen=True)
class Promise:
    """The smallest weight ε, and log₁₀ of the bound on μ after layers that complete a column."""

    smallest: float
    bounds: dict[int, float]


@torch.no_grad()
def promise(network: Network, x: Tensor) -> Promise:
    """The bound for one head and one ``(1, token, feature)`` input without padding."""
    tokens = x.shape[1]
    allowed = [mask.matrix(tokens) for mask in network.spec.masks]
    weights = attention_patterns(network, x, layers=network.spec.layers)
    smallest = min(
        float(smallest_allowed_weight(each, seen).min())
        for each, seen in zip(weights, allowed, strict=True)
    )
    log = math.log10(math.sqrt(tokens / 2) * float(torch.cdist(x[0], x[0]).max()))
    growth = list(_log10_norms(network))
    bounds: dict[int, float] = {}
    before = 0
    for layer in full_columns(allowed):
        log += math.log1p(-(smallest ** (layer - before))) / math.log(10)
        log += sum(growth[before:layer])
        bounds[layer] = log
        before = layer
    return Promise(smallest, bounds)


def full_columns(allowed: Sequence[Tensor]) -> Iterator[int]:
    """The layers by which every token has heard of some one token, each time anew.

    >>> from rankscope.core.masks import Causal
    >>> list(full_columns([Causal().matrix(4)] * 3))
    [1, 2, 3]
    """
    heard = None
    for layer, matrix in enumerate(allowed, start=1):
        heard = matrix.double() if heard is None else (matrix.double() @ heard > 0).double()
        if bool((heard > 0).all(0).any()):
            yield layer
            heard = None


def promise_table(network: Network, x: Tensor, token_mask: Tensor) -> pl.DataFrame:
    """The bound by layer and sample, and each sample's smallest weight."""
    network = network.double()
    rows: list[tuple[int | None, int, str, float]] = []
    for sample, (one, real) in enumerate(zip(x, token_mask, strict=True)):
        found = promise(network, one[real].unsqueeze(0))
        rows.append((None, sample, SMALLEST, found.smallest))
        rows += [(layer, sample, PROMISED, bound) for layer, bound in found.bounds.items()]
    return tables.from_rows(("layer", "sample", "metric", "value"), rows)


def _log10_norms(network: Network) -> Iterator[float]:
    """log₁₀ of the spectral norm of each layer's values, ``W_V W_O``."""
    for block in network.blocks:
        attention = cast(Block, block).attention
        whole = attention.output.weight @ attention.value.weight
        yield math.log10(float(torch.linalg.matrix_norm(whole, 2)))


WINDOWS, OTHERS, NO_CENTER = "two-sided windows", "other masks", "masks without a center"
FEW = "few tokens, weak scores"
CHANGING, VALUES = "masks that change", "other values"
"""Panels of the table."""
_ROUNDING = 1e-6
"""Decades by which a bound may seem to be passed."""

Pair = tuple[str, str]
"""Two masks, the one of smaller radius first."""
Radii = Mapping[str, Mapping[str, float]]
"""By panel and mask, the layers until every token has heard of some one; infinite if never."""


@dataclass(frozen=True)
class Curve:
    """One mask, or one kind of values: two laws, and how it compares with the bound.

    A bound that is not below the input's own μ says nothing, so only those below are compared.
    """

    relative: Law
    dispersion: Law
    radius: float
    smallest: float
    compared: int
    above: int
    nearest: float
    """The largest μ over its bound, in decades."""


def radius_of(masks: tuple[Mask, ...], tokens: int) -> float:
    """Of masks that layers take in turn: the layers until every token has heard of some one."""
    if len(masks) == 1:
        return graph_facts(masks[0], tokens).contracts_after
    turns = [mask.matrix(tokens) for mask in masks] * tokens
    return next(full_columns(turns), math.inf)


def read_curves(table: pl.DataFrame, radii: Radii) -> dict[str, Curve]:
    relative, dispersion = (
        _by_panel(table, m) for m in (depths.RELATIVE_DISPERSION, depths.DISPERSION)
    )
    radius = {name: each for panel in radii.values() for name, each in panel.items()}
    met = _met(table)
    curves = {}
    for name in relative:
        over = met.filter(variant=name)["over"].to_list()
        smallest = table.filter(metric=SMALLEST, variant=name)["value"].to_list()
        curves[name] = Curve(
            relative[name],
            dispersion[name],
            radius.get(name, math.inf),
            min(smallest, default=math.nan),
            len(over),
            sum(each > _ROUNDING for each in over),
            max(over, default=-math.inf),
        )
    return curves


def _met(table: pl.DataFrame) -> pl.DataFrame:
    """μ over the bounds that promise a smaller μ than the input's, in decades, as ``over``."""
    found = table.filter(metric=depths.DISPERSION)
    first = found.filter(layer=0).select("variant", "sample", first="value")
    bounds = table.filter(metric=PROMISED).select("variant", "layer", "sample", bound="value")
    met = found.join(bounds, on=("variant", "layer", "sample")).join(
        first, on=("variant", "sample")
    )
    says = met.filter(pl.col("bound") < pl.col("first") - _ROUNDING)
    return says.with_columns(over=pl.col("value") - pl.col("bound"))


def _by_panel(table: pl.DataFrame, metric: str) -> dict[str, Law]:
    """The law of every curve; attention that hardens as states grow makes uneven ones."""
    found: dict[str, Law] = {}
    for part in table.partition_by("model", maintain_order=True):
        evidence = UNEVEN if part["model"][0] == VALUES else SMOOTH
        found |= depths.laws(tables.summary(part), metric, evidence=evidence)
    return found


def names_of(table: pl.DataFrame, panel: str) -> list[str]:
    names: list[str] = table.filter(model=panel)["variant"].unique(maintain_order=True).to_list()
    return names


def pairs_by_radius(curves: Mapping[str, Curve]) -> list[Pair]:
    """Masks that shrink at a rate, two and two, as far as their radii differ."""
    steady = [
        name
        for name, one in curves.items()
        if one.relative.kind == "exponential" and math.isfinite(one.radius)
    ]
    by_radius = sorted(steady, key=lambda name: curves[name].radius)
    return [(a, b) for a, b in combinations(by_radius, 2) if curves[a].radius < curves[b].radius]


def reversals(pairs: Iterable[Pair], curves: Mapping[str, Curve]) -> list[Pair]:
    """The pairs in which the larger radius shrinks faster."""
    return [(a, b) for a, b in pairs if curves[b].relative.rate < curves[a].relative.rate]


_CENTERED = "all masks with a center"
_FAMILIES = "radius across families"
_BEYOND = "radius across families, values of other sizes, masks that change from layer to layer"


@dataclass(frozen=True)
class Judged:
    """Both verdicts, what they rest on, and the figures to quote."""

    judgement: kit.Judgement
    beyond: kit.Judgement | None
    sentences: tuple[str, ...]
    key_figures: Mapping[str, float]
    listings: tuple[kit.Listing, ...]


def judge(domain: str, table: pl.DataFrame, radii: Radii) -> Judged:
    """Two verdicts.

    On the theorem's domain a mask with a center must collapse at a steady rate or faster, with μ
    below the bound wherever that says something; a mask without one must not; and among the
    two-sided windows a larger radius must not be faster. Beyond it: radii across families, μ → 0
    for other values, and changing masks, which collapse if their layers together have a center. A
    mask whose layers show no law is left out.
    """
    curves = read_curves(table, radii)
    windows, others, no_center, few, changing = (
        {name: curves[name] for name in radii.get(panel, {})}
        for panel in (WINDOWS, OTHERS, NO_CENTER, FEW, CHANGING)
    )
    values = {name: curves[name] for name in names_of(table, VALUES)}
    alike = windows | others | no_center
    own = alike | few
    ordered = {WINDOWS: pairs_by_radius(windows), _CENTERED: pairs_by_radius(alike)}
    in_order = {words: not reversals(pairs, own) for words, pairs in ordered.items() if pairs}
    stated = _as_stated(own)
    on_domain = stated | {words: holds for words, holds in in_order.items() if words == WINDOWS}
    return Judged(
        kit.judged(domain, on_domain, "" if on_domain else "the layers are too few to show a law"),
        _beyond(in_order, values, changing),
        (
            _count(own, stated),
            *_compared(own),
            *_distance(own),
            *(_order(words, pairs, own) for words, pairs in ordered.items() if pairs),
            *depths.left_out(_laws(own | changing, "relative") | _laws(values, "dispersion")),
        ),
        {
            "layers above the theorem's bound": float(sum(one.above for one in own.values())),
            "layers in which that says something": float(sum(one.compared for one in own.values())),
        },
        (_masks(own | changing), *([_values(values)] if values else [])),
    )


def _beyond(
    in_order: Mapping[str, bool], values: Mapping[str, Curve], changing: Mapping[str, Curve]
) -> kit.Judgement | None:
    cases = {
        **({_FAMILIES: in_order[_CENTERED]} if _CENTERED in in_order else {}),
        **as_stated(_laws(values, "dispersion"), lambda _, law: law.collapses),
        **_as_stated(changing),
    }
    against = [name for name, holds in cases.items() if not holds]
    return kit.judged(_BEYOND, cases, _but_for(against, cases)) if cases else None


def _as_stated(curves: Mapping[str, Curve]) -> dict[str, bool]:
    """Masks with a center that collapse, nowhere above the bound; others that do not.

    Where the bound says nothing, the law alone decides.
    """

    def holds(name: str, law: Law) -> bool:
        if math.isinf(curves[name].radius):
            return law.kind == "none"
        return law.collapses and not curves[name].above

    return as_stated(_laws(curves, "relative"), holds)


def _laws(curves: Mapping[str, Curve], of: str) -> dict[str, Law]:
    return {name: getattr(one, of) for name, one in curves.items()}


def _but_for(against: list[str], cases: Mapping[str, bool]) -> str:
    """What a verdict depends on; nothing where all cases agree."""
    if len(against) in (0, len(cases)):
        return ""
    return f"the case: not {', '.join(against)}; {len(cases) - len(against)} others as stated"


def _count(curves: Mapping[str, Curve], stated: Mapping[str, bool]) -> str:
    centered = [name for name, one in curves.items() if math.isfinite(one.radius)]
    others = [name for name in curves if name not in centered]
    collapsing, staying = (
        sum(stated.get(name, False) for name in group) for group in (centered, others)
    )
    return (
        f"{collapsing} of {len(centered)} masks with a center collapse, exponentially or faster, "
        "and never above the theorem's bound where that says something; "
        f"{staying} of {len(others)} without one do not collapse."
    )


def _compared(curves: Mapping[str, Curve]) -> Iterator[str]:
    """Under which masks the bound says something, how often it is passed, and how nearly."""
    centered = {name: one for name, one in curves.items() if math.isfinite(one.radius)}
    binding = {name: one for name, one in centered.items() if one.compared}
    if not centered:
        return
    if not binding:
        yield (
            "The theorem's bound says nothing under any of these masks: it is never below the "
            "input's μ, so that they are judged by their law alone."
        )
        return
    nearest = max(binding, key=lambda name: binding[name].nearest)
    rest = len(centered) - len(binding)
    alone = f"; the other {rest} are judged by their law alone" if rest else ""
    yield (
        "The theorem's bound says something, that is, promises a smaller μ than the input's, under "
        f"{', '.join(binding)}{' only' if rest else ''}: μ is above it in "
        f"{sum(one.above for one in binding.values())} of "
        f"{sum(one.compared for one in binding.values())} comparisons, and comes nearest under "
        f"{nearest}, to {power_of_ten(binding[nearest].nearest)} of it{alone}."
    )


def _distance(curves: Mapping[str, Curve]) -> Iterator[str]:
    """How far the bound's rate is from the one that is measured."""
    promised = {
        name: a_priori_log_loss(one.smallest, one.radius) / math.log(10)
        for name, one in curves.items()
        if one.relative.kind == "exponential" and one.smallest > 0 and math.isfinite(one.radius)
    }
    if not promised:
        return
    near, far = (pick(promised, key=lambda name: promised[name]) for pick in (max, min))
    words = (
        f"{name} (radius {curves[name].radius:g}, ε = {_power(curves[name].smallest)}) loses "
        f"at least {power_of_ten(promised[name])} of its differences a layer, and it loses "
        f"{_power(1 - 10 ** curves[name].relative.rate)}"
        for name in dict.fromkeys((near, far))
    )
    yield f"The bound says that {'; that '.join(words)}."


def _order(words: str, pairs: list[Pair], curves: Mapping[str, Curve]) -> str:
    """How often a larger radius is slower, and where it is most clearly not."""
    against = reversals(pairs, curves)
    count = (
        f"Radius and rate, {words}: in {len(pairs) - len(against)} of {len(pairs)} pairs of "
        "different radius the larger one is slower"
    )
    if not against:
        return f"{count}."
    a, b = max(
        against, key=lambda pair: curves[pair[0]].relative.rate - curves[pair[1]].relative.rate
    )
    slow, fast = (
        f"{name}, radius {curves[name].radius:g}, × "
        f"{power_of_ten(curves[name].relative.rate, digits=3)}"
        for name in (a, b)
    )
    return f"{count}; against it most clearly {fast} a layer, beside {slow}."


def _masks(curves: Mapping[str, Curve]) -> kit.Listing:
    """Every mask, or masks that layers take in turn: its radius, ε, and the law it follows."""
    rows = tuple(
        (
            name,
            int(one.radius) if math.isfinite(one.radius) else None,
            None if math.isnan(one.smallest) else _power(one.smallest),
            *depths.law_entries(one.relative),
        )
        for name, one in curves.items()
    )
    return kit.Listing(
        "Relative dispersion under each mask",
        ("mask", "radius", "ε", *depths.LAW_COLUMNS),
        rows,
        "Radius: the layers until every token has heard of some one; none without a center. ε: the "
        f"smallest weight. Medians over the samples. {depths.LAW_NOTE}",
    )


def _values(curves: Mapping[str, Curve]) -> kit.Listing:
    """Which part of the change of μ attention has, and which the size of the states."""
    rows = []
    for name, one in curves.items():
        by_attention, whole = one.relative.rate, one.dispersion.rate
        factors = (
            power_of_ten(rate, digits=3) for rate in (whole, by_attention, whole - by_attention)
        )
        rows.append((name, *factors, _power(one.smallest), one.relative.name))
    return kit.Listing(
        "Beyond: what a layer multiplies μ by",
        ("values", "in all", "by attention", "by values", "ε", "relative to the tokens' size"),
        tuple(rows),
    )


def _power(value: float) -> str:
    """A positive number or zero, as a power of ten where it is small."""
    return power_of_ten(math.log10(value) if value > 0 else -math.inf)
