"""One layer of attention and a norm, repeated, from many starts: what W6 and D10 follow.

**Values that keep rank two (derived).** Causal mask, unit sphere, two features, no skip,
``W = diag(1, l)`` with 0 < l < 1, and scores ``κ x (J − aI) yᵀ`` with ``J = [[0, 1], [−1, 0]]``: a
token prefers tokens on one side of it, avoids those on the other and, by a ≥ 0, itself. Token 1
tends to ±e₁; let it be e₁. Let token 2 be ``(−cos φ, sin φ)``, φ > 0. It gives token 1 the weight
``r = exp(−κ(sin φ − a(1 + cos φ)))`` times its own, so that ``tan φ' = l sin φ / (cos φ − r)``. The
values pull it to the pole −e₁; the closer it comes, the more it sees of token 1, which pushes it
off. They balance where

    ``(1 − l) cos φ = r``.

There token 1 has the multiplier l, and token 2
``(l cos²φ + sin²φ − κ r sin φ (cos φ + a sin φ))/l``. For l = 0.7, κ = 8 and a = 0.2 they are 0.7
and −0.36 at φ = 0.57: a stable equilibrium of rank two, hence an open set of starts that never
collapse. Further tokens have the same choice, so that the share of such starts does not vanish with
their number.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl
import torch
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.deep import deep_trace
from rankscope.core.masks import as_mask
from rankscope.core.metrics import spectra
from rankscope.core.network import Network, NormKind
from rankscope.core.theory import equilibrium_at
from rankscope.core.tracing import Trace
from rankscope.experiments import depths, kit
from rankscope.experiments.norm_outcomes import DIFFERENT
from rankscope.streams import stream

Values = Literal["diagonal", "skewed", "orthogonal", "random"]
Scores = Literal["turned", "uniform", "random"]


@checked
@dataclass(frozen=True)
class Dynamics:
    """One head, repeated; ``values`` and ``scores`` are its weights by kind.

    ``decay`` is l: the eigenvalue of each further feature, or of the second one of skewed values,
    whose eigenvectors have the cosine ``skew``. ``strength`` is κ, ``avoidance`` a.
    """

    name: str
    values: Values = "diagonal"
    scores: Scores = "turned"
    tokens: int = 8
    width: int = 2
    mask: str = "causal"
    norm: NormKind = "sphere"
    decay: float = 0.7
    skew: float = 0.9
    strength: float = 8.0
    avoidance: float = 0.2
    fresh: bool = False
    """Random weights drawn anew for every layer."""


def build(case: Dynamics, layers: int, seed: int) -> Network:
    """The network with ``layers`` layers; a deeper one begins with the same layers."""
    drawn = layers if case.fresh else 1
    matrices = [
        torch.stack([make(case, stream(seed, kind, case.width, layer)) for layer in range(drawn)])
        for kind, make in (("scores", _scores), ("values", _values))
    ]
    query_key, values = (matrix.unsqueeze(1).expand(layers, -1, -1, -1) for matrix in matrices)
    mask = as_mask(case.mask)
    return Network.from_matrices(query_key, values, head_width=1, norm=case.norm, mask=mask)


def starts(case: Dynamics, count: int, seed: int) -> Tensor:
    """Tokens in general position: independent and uniform on the sphere."""
    shape = (count, case.tokens, case.width)
    x = torch.randn(shape, generator=stream(seed, "starts", *shape), dtype=torch.float64)
    unit: Tensor = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return unit


def _values(case: Dynamics, generator: torch.Generator) -> Tensor:
    width = case.width
    if case.values == "diagonal":
        return torch.diag(case.decay ** torch.arange(width, dtype=torch.float64))
    if case.values == "skewed":
        along = torch.tensor([[1.0, 0.0], [case.skew, math.sqrt(1 - case.skew**2)]]).double()
        skewed: Tensor = torch.linalg.solve(along, torch.tensor([[1.0], [case.decay]]) * along)
        return skewed
    drawn = torch.randn(width, width, generator=generator, dtype=torch.float64)
    if case.values == "orthogonal":
        q: Tensor = torch.linalg.qr(drawn).Q
        return q
    return drawn / math.sqrt(width)


def _scores(case: Dynamics, generator: torch.Generator) -> Tensor:
    width = case.width
    if case.scores == "random":
        drawn = torch.randn(width, width, generator=generator, dtype=torch.float64)
        return case.strength * drawn
    if case.scores == "uniform":
        return torch.zeros(width, width, dtype=torch.float64)
    turned = -case.avoidance * torch.eye(width, dtype=torch.float64)
    for first in range(0, width - 1, 2):
        turned[first, first + 1], turned[first + 1, first] = 1.0, -1.0
    return case.strength * turned


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
class StartsPlan:
    """How many starts are followed, and how far: four times ``layers``, since a level may not last.

    Every ``every``th layer is recorded. Where weights are random, ``draws`` of them share the
    starts.
    """

    seed: int
    starts: int
    layers: int
    every: int = 5
    draws: int = 1


def follow(
    plan: StartsPlan, case: Dynamics, on_step: kit.OnStep
) -> tuple[list[Row], dict[str, str]]:
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
        by_layer = [spectra(states[layer]) for layer in recorded]
        ratios.append(torch.stack([layer.spectral_ratio() for layer in by_layer]))
        ranks.append(by_layer[-1].stable_rank())
        step = build(case, 1, plan.seed + draw)
        radii += _radius_at_rest(step, states[-1][ratios[-1][-1] > DIFFERENT])
    relative = torch.cat([_by_layer(trace, recorded) for trace in traces], 1)
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
    return [equilibrium_at(step, x).stability.radius for x in resting[:1]]


def _by_layer(traced: Trace, recorded: Sequence[int]) -> torch.Tensor:
    """Relative dispersions ``(layer, sample)`` at the layers that are recorded."""
    rows = traced.table.filter(pl.col("layer").is_in(recorded), metric=depths.RELATIVE)
    values = torch.tensor(rows.sort("layer", "sample")["value"].to_list())
    return values.reshape(len(recorded), -1)
