"""Many starts of one layer repeated: how many still differ, and how many are above rank one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import torch

from rankscope.core.deep import deep_trace
from rankscope.core.metrics import spectra
from rankscope.core.network import Network
from rankscope.core.theory import equilibrium_at
from rankscope.core.tracing import Trace
from rankscope.experiments import depths, kit
from rankscope.experiments.claims._norm_dynamics import Dynamics, build, starts
from rankscope.experiments.studies._layernorm_outcomes import DIFFERENT

APART, ABOVE, RADIUS, STABLE = (
    "share_still_apart",
    "share_above_rank_one",
    "spectral_radius",
    "stable_rank_apart",
)
_AT_REST = 1e-6
"""A state that one more layer moves by less than this has settled."""

Row = tuple[str, int, str, float]
"""Case, layer, metric, value."""


@dataclass(frozen=True)
class Plan:
    """How many starts are followed, and how far: four times ``layers``, since a level may not last.

    Every ``every``th layer is recorded. Where weights are random, ``draws`` of them share the
    starts.
    """

    seed: int
    starts: int
    layers: int
    every: int = 5
    draws: int = 1


def follow(plan: Plan, case: Dynamics, on_step: kit.OnStep) -> tuple[list[Row], dict[str, str]]:
    """The shares of the starts that differ and that are above rank one, layer by layer; doubts.

    A start is above rank one where its tokens differ in scaled arithmetic and their second singular
    value, in float64, is a hundredth of the first or more. Tokens at two opposite poles differ, and
    yet have rank one.
    """
    draws = plan.draws if case.values == "random" else 1
    depth, count = 4 * plan.layers, plan.starts // draws
    recorded = range(0, depth + 1, plan.every)
    traces, ratios, ranks, radii = [], [], [], []
    for draw, _ in kit.tracked(range(draws), on_step):
        network = build(case, depth, plan.seed + draw)
        x = starts(case, count, plan.seed + draw)
        traces.append(deep_trace(network, x, norm="fro"))
        with torch.no_grad():
            states = [x, *network.states(x)]
        found = [spectra(states[layer]) for layer in recorded]
        ratios.append(torch.stack([each.spectral_ratio() for each in found]))
        ranks.append(found[-1].stable_rank())
        step = build(case, 1, plan.seed + draw)
        radii += _radius_at_rest(step, states[-1][ratios[-1][-1] > DIFFERENT])
    relative = torch.cat([_by_layer(each, recorded) for each in traces], 1)
    apart = relative > math.log10(DIFFERENT)
    above = apart & (torch.cat(ratios, 1) > DIFFERENT)
    rows: list[Row] = []
    for name, shares in {APART: apart, ABOVE: above}.items():
        values = shares.double().mean(1).tolist()
        rows += [(case.name, layer, name, v) for layer, v in zip(recorded, values, strict=True)]
    if bool(apart[-1].any()):
        rows.append((case.name, depth, STABLE, float(torch.cat(ranks)[apart[-1]].median())))
    rows += [(case.name, depth, RADIUS, radius) for radius in radii[:1]]
    return rows, depths.doubts(
        {f"{case.name} {k}".removesuffix(" 0"): t for k, t in enumerate(traces)}
    )


def _radius_at_rest(step: Network, ends: torch.Tensor) -> list[float]:
    """The spectral radius of one more layer at the first of these states that it does not move."""
    if not len(ends):
        return []
    with torch.no_grad():
        moved = (step(ends) - ends).abs().flatten(1).amax(1)
    resting = ends[moved < _AT_REST]
    return [equilibrium_at(step, each).stability.radius for each in resting[:1]]


def _by_layer(traced: Trace, recorded: Sequence[int]) -> torch.Tensor:
    """Relative dispersions ``(layer, sample)`` at the layers that are recorded."""
    rows = traced.table.filter(pl.col("layer").is_in(recorded), metric=depths.RELATIVE)
    values = torch.tensor(rows.sort("layer", "sample")["value"].to_list())
    return values.reshape(len(recorded), -1)
