"""Claim W1: masked attention with a center collapses exponentially; a larger radius is slower."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, groupby
from typing import NamedTuple, cast

import polars as pl
import torch

from rankscope import tables
from rankscope.arguments import checked
from rankscope.core.masks import Mask, as_mask
from rankscope.core.network import Block, Network, Spec
from rankscope.core.theory import Law, a_priori_log_loss, as_stated
from rankscope.experiments import depths, kit
from rankscope.experiments.claims._masked import (
    CHANGING,
    FEW,
    NO_CENTER,
    OTHERS,
    VALUES,
    WINDOWS,
    Curve,
    promise_table,
    radius_of,
    read_curves,
)
from rankscope.numerals import plural, power_of_ten

ENTRY = kit.claim(
    "W1",
    "Masked attention collapses exponentially if its graph has a center, more slowly the larger "
    "the radius, and does not collapse to one point without a center.",
    source="Wu et al. 2024, masked attention",
    question="Does every mask with a center collapse at a steady rate below the theorem's bound, a "
    "larger radius more slowly, and no mask without one?",
    domain="one head, bounded products of values, attention weights at least ε",
    beyond="radius across families, values of other sizes, masks that change from layer to layer",
    seconds=25,
    metrics=(
        kit.Metric(
            "promised_dispersion",
            "Promised dispersion",
            "bound on μ(X)",
            "log",
            "The dispersion stays below it",
            "The bound on μ(X) that the graph of the masks, the smallest weight and the norms of "
            "the values promise (Wu et al. 2024).",
            "down",
        ),
    ),
)
PAPER = {"tokens": 64, "samples": 4, "layers": 256}
CHARTS = (kit.Drawing("by_depth", "A curve for each mask.", depths.RELATIVE_DISPERSION),)
_CENTERED = "all masks with a center"


@checked
@dataclass(frozen=True)
class ValueScaling:
    """Values that are scaled, or not orthogonal; ``uniform`` attention does not follow the states.

    Hidden states that grow make ordinary attention one-hot, so that its weights have no bound
    either; uniform attention shows growing products alone. ``scores`` is by what logits are
    multiplied.
    """

    name: str
    factor: float = 1.0
    init: str = "orthogonal"
    uniform: bool = False
    scores: float = 1.0


class MaskCase(NamedTuple):
    """A network: the masks that its layers take in turn, one or several, and its values."""

    panel: str
    name: str
    masks: tuple[Mask, ...]
    tokens: int
    values: ValueScaling = ValueScaling("orthogonal")


@dataclass(frozen=True)
class Config(depths.DeepConfig):
    """One head; no norm, skips, MLPs or biases; masks by their names.

    Values are orthogonal, so that their products are bounded by 1, but in ``values``, under one
    mask. Layers of ``changing`` masks take them in turn. Under most masks ε is so small that the
    theorem's bound stays above the input's μ and is vacuous; among ``few`` tokens (each mask with
    their number) whose logits are ``weak`` times as large it is close to what happens.
    """

    tokens: int = 48
    samples: int = 2
    layers: int = 96
    windows: tuple[str, ...] = ("window:16", "window:8", "window:4", "window:2", "window:1")
    others: tuple[str, ...] = ("causal", "causal-window:4", "star:1", "bigbird:2:1:2")
    without_center: tuple[str, ...] = ("block:16", "window:4 & block:24")
    few: tuple[tuple[str, int], ...] = (("causal", 2), ("star:1", 4))
    weak: float = 0.1
    values: tuple[ValueScaling, ...] = (
        ValueScaling("values × 0.5", 0.5),
        ValueScaling("values × 1.1", 1.1),
        ValueScaling("values × 1.1 under uniform attention", 1.1, uniform=True),
        ValueScaling("random values", init="lecun"),
    )
    values_mask: str = "window:8"
    changing: tuple[tuple[str, ...], ...] = (
        ("block:16", "block:24"),
        ("block:8", "dilated:16:8"),
        ("block:16", "block:8"),
    )

    def cases(self) -> list[MaskCase]:
        """Every network that is tried, panel by panel; random masks follow the seed."""

        def masks(*names: str) -> tuple[Mask, ...]:
            return tuple(as_mask(name, seed=self.seed) for name in names)

        single = {WINDOWS: self.windows, OTHERS: self.others, NO_CENTER: self.without_center}
        turns = [(panel, masks(name)) for panel, names in single.items() for name in names]
        turns += [(CHANGING, masks(*names)) for names in self.changing]
        cases = [MaskCase(p, " then ".join(map(str, turn)), turn, self.tokens) for p, turn in turns]
        for name, tokens in self.few:
            (mask,) = masks(name)
            weak = ValueScaling("weak", scores=self.weak)
            cases.append(
                MaskCase(FEW, f"{mask} of {plural(tokens, 'token')}", (mask,), tokens, weak)
            )
        shared = masks(self.values_mask)
        return cases + [MaskCase(VALUES, v.name, shared, self.tokens, v) for v in self.values]

    def network(self, masks: tuple[Mask, ...], values: ValueScaling) -> Network:
        """One head whose layers take these masks in turn."""
        spec = Spec.pure_attention(
            self.layers,
            1,
            self.width,
            bias=False,
            init=values.init,
            layer_masks=[masks[layer % len(masks)] for layer in range(self.layers)],
            score_scale=0.0 if values.uniform else values.scores / math.sqrt(self.width),
        )
        network = Network.random(spec, seed=self.seed)
        with torch.no_grad():
            for block in network.blocks:
                cast(Block, block).attention.value.weight.mul_(values.factor)
        return network


def measure(config: Config, on_step: kit.OnStep) -> depths.Measured:
    """μ under many masks, in scaled arithmetic, beside what the theorem guarantees."""
    parts: dict[str, list[pl.DataFrame]] = {}
    notes: dict[str, str] = {}
    alike = groupby(config.cases(), key=lambda case: (case.panel, case.tokens))
    groups = [(*shared, list(cases)) for shared, cases in alike]
    for (panel, tokens, cases), on_group in kit.tracked(groups, on_step):
        networks = {case.name: config.network(case.masks, case.values) for case in cases}
        x, token_mask = (tensor[:, :tokens] for tensor in config.texts())
        compared = depths.compare(networks, x, token_mask, norm="fro", on_step=on_group)
        wanted = pl.col("metric").is_in(["log10_residual", depths.RELATIVE])
        promised = {
            name: promise_table(network, x, token_mask) for name, network in networks.items()
        }
        measured = depths.dispersions(compared.table.filter(wanted))
        parts.setdefault(panel, []).extend((measured, tables.joined(promised)))
        notes |= compared.notes
    stacked = {panel: tables.stack(rows) for panel, rows in parts.items()}
    return depths.Measured(
        tables.joined(stacked, column="model"), notes, about={"dispersion": "Frobenius norm"}
    )


def judge(config: Config, measured: depths.Measured) -> kit.Answer:
    """Each mask, and the order of their rates.

    On the theorem's domain a mask with a center must collapse at a steady rate or faster, with μ
    below the bound wherever that is informative; a mask without one must not; and among the
    two-sided windows a larger radius must not be faster. Beyond it: radii across families, μ → 0
    for other values, and changing masks, which collapse if their layers together have a center. A
    mask whose layers show no law is left out.
    """
    radii = {case.name: radius_of(case.masks, case.tokens) for case in config.cases()}
    curves = read_curves(measured.table, radii)
    windows, others, no_center, few, changing, values = (
        {name: curve for name, curve in curves.items() if curve.panel == panel}
        for panel in (WINDOWS, OTHERS, NO_CENTER, FEW, CHANGING, VALUES)
    )
    alike = windows | others | no_center
    covered = alike | few
    pairs = {WINDOWS: _pairs_by_radius(windows), _CENTERED: _pairs_by_radius(alike)}
    pairs = {words: compared for words, compared in pairs.items() if compared}
    in_order = {words: not _reversals(compared, covered) for words, compared in pairs.items()}
    stated = _as_stated(covered)
    of_values = {name: curve.dispersion for name, curve in values.items()}
    beyond = {
        **({"radius across families": in_order[_CENTERED]} if _CENTERED in in_order else {}),
        **as_stated(of_values, lambda _, law: law.collapses),
        **_as_stated(changing),
    }
    against = [name for name, holds in beyond.items() if not holds]
    others_held = len(beyond) - len(against)
    return kit.Answer(
        (
            _count(covered, stated),
            *_compared(covered),
            *_distance(covered),
            *(_order(words, compared, covered) for words, compared in pairs.items()),
            *depths.left_out(_relative_laws(covered | changing) | of_values),
        ),
        stated=stated | {words: holds for words, holds in in_order.items() if words == WINDOWS},
        on={"not tried": "the layers are too few to show a law"},
        beyond=beyond or None,
        on_beyond={
            "depends": f"supported in {others_held} of {len(beyond)} cases; not for "
            f"{', '.join(against)}"
        },
        key_figures={
            "layers above the theorem's bound": float(sum(c.above for c in covered.values())),
            "layers in which that bound is informative": float(
                sum(c.compared for c in covered.values())
            ),
        },
        listings=(_list_masks(covered | changing), *([_list_values(values)] if values else [])),
    )


def _relative_laws(curves: Mapping[str, Curve]) -> dict[str, Law]:
    return {name: curve.relative for name, curve in curves.items()}


def _as_stated(curves: Mapping[str, Curve]) -> dict[str, bool]:
    """Masks with a center that collapse, nowhere above the bound; others that do not.

    Where the bound is vacuous, the law alone decides.
    """

    def holds(name: str, law: Law) -> bool:
        if math.isinf(curves[name].radius):
            return law.kind == "none"
        return law.collapses and not curves[name].above

    return as_stated(_relative_laws(curves), holds)


def _pairs_by_radius(curves: Mapping[str, Curve]) -> list[tuple[str, str]]:
    """Masks that shrink at a rate, two and two, the smaller radius first."""
    steady = [
        name
        for name, curve in curves.items()
        if curve.relative.kind == "exponential" and math.isfinite(curve.radius)
    ]
    by_radius = sorted(steady, key=lambda name: curves[name].radius)
    return [(a, b) for a, b in combinations(by_radius, 2) if curves[a].radius < curves[b].radius]


def _reversals(
    pairs: list[tuple[str, str]], curves: Mapping[str, Curve]
) -> dict[tuple[str, str], float]:
    """The pairs in which the larger radius shrinks faster, and by how much."""
    faster = {(a, b): curves[a].relative.rate - curves[b].relative.rate for a, b in pairs}
    return {pair: by for pair, by in faster.items() if by > 0}


def _count(curves: Mapping[str, Curve], stated: Mapping[str, bool]) -> str:
    centered = [name for name, curve in curves.items() if math.isfinite(curve.radius)]
    others = [name for name in curves if name not in centered]
    collapsing, staying = (
        sum(stated.get(name, False) for name in group) for group in (centered, others)
    )
    return (
        f"{collapsing} of {len(centered)} masks with a center collapse, exponentially or faster, "
        "and never above the theorem's bound where it is informative; "
        f"{staying} of {len(others)} without one do not collapse."
    )


def _compared(curves: Mapping[str, Curve]) -> Iterator[str]:
    """Under which masks the bound is informative, how often it is exceeded, and how tight it is."""
    centered = {name: curve for name, curve in curves.items() if math.isfinite(curve.radius)}
    binding = {name: curve for name, curve in centered.items() if curve.compared}
    if not centered:
        return
    if not binding:
        yield (
            "The theorem's bound is vacuous under any of these masks: it is never below the "
            "input's μ, so that they are judged by their law alone."
        )
        return
    nearest = max(binding, key=lambda name: binding[name].nearest)
    rest = len(centered) - len(binding)
    alone = f"; the other {rest} are judged by their law alone" if rest else ""
    yield (
        "The theorem's bound is informative (below the input's μ) under "
        f"{', '.join(binding)}{' only' if rest else ''}: μ is above it in "
        f"{sum(curve.above for curve in binding.values())} of "
        f"{sum(curve.compared for curve in binding.values())} comparisons, and comes nearest under "
        f"{nearest}, to {power_of_ten(binding[nearest].nearest)} of it{alone}."
    )


def _distance(curves: Mapping[str, Curve]) -> Iterator[str]:
    """How far the bound's rate is from the one that is measured."""
    promised = {
        name: a_priori_log_loss(curve.smallest, curve.radius) / math.log(10)
        for name, curve in curves.items()
        if curve.relative.kind == "exponential"
        and curve.smallest > 0
        and math.isfinite(curve.radius)
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


def _order(words: str, pairs: list[tuple[str, str]], curves: Mapping[str, Curve]) -> str:
    """How often a larger radius is slower, and where it is most clearly not."""
    against = _reversals(pairs, curves)
    count = (
        f"Radius and rate, {words}: in {len(pairs) - len(against)} of {len(pairs)} pairs of "
        "different radius the larger one is slower"
    )
    if not against:
        return f"{count}."
    slow, fast = (
        f"{name}, radius {curves[name].radius:g}, × "
        f"{power_of_ten(curves[name].relative.rate, digits=3)}"
        for name in max(against, key=against.__getitem__)
    )
    return f"{count}; against it most clearly {fast} a layer, beside {slow}."


def _list_masks(curves: Mapping[str, Curve]) -> kit.Listing:
    """Every mask, or masks that layers take in turn: its radius, ε, and the law it follows."""
    rows = tuple(
        (
            name,
            int(curve.radius) if math.isfinite(curve.radius) else None,
            None if math.isnan(curve.smallest) else _power(curve.smallest),
            *depths.law_entries(curve.relative),
        )
        for name, curve in curves.items()
    )
    return kit.Listing(
        "Relative dispersion under each mask",
        ("mask", "radius", "ε", *depths.LAW_COLUMNS),
        rows,
        "Radius: the layers until one token has reached every token; none without a center. ε: the "
        f"smallest weight. Medians over the samples. {depths.LAW_NOTE}",
    )


def _list_values(curves: Mapping[str, Curve]) -> kit.Listing:
    """Which part of the change of μ attention has, and which the size of the states."""
    rows = []
    for name, curve in curves.items():
        by_attention, overall = curve.relative.rate, curve.dispersion.rate
        rates = (overall, by_attention, overall - by_attention)
        factors = (power_of_ten(rate, digits=3) for rate in rates)
        rows.append((name, *factors, _power(curve.smallest), curve.relative.name))
    return kit.Listing(
        "Beyond: factor on μ per layer",
        ("values", "in all", "by attention", "by values", "ε", "relative to the tokens' size"),
        tuple(rows),
    )


def _power(value: float) -> str:
    """A positive number or zero, as a power of ten where it is small."""
    return power_of_ten(math.log10(value) if value > 0 else -math.inf)
