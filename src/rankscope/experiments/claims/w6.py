"""Claim W6: with suitable values many sequences never tend to rank one under a norm."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl
import torch

from rankscope import tables
from rankscope.deep import deep_trace
from rankscope.experiments import depths, kit
from rankscope.experiments.claims._norm_dynamics import Dynamics, build, starts
from rankscope.metrics import spectra
from rankscope.network import Network
from rankscope.numerals import plural, short
from rankscope.theory import equilibrium_at
from rankscope.tracing import Trace

ENTRY = kit.entry("W6")
APART, ABOVE, RADIUS, STABLE = (
    "share_still_apart",
    "share_above_rank_one",
    "spectral_radius",
    "stable_rank_apart",
)
_DIFFERENT = 1e-2
"""Tokens differ, and a second direction counts, above this part of their size."""
_LASTING = 0.9
"""The part of the starts above rank one that must still be there with all layers."""
_AT_REST = 1e-6
"""A state that one more layer moves by less than this has settled."""
_BEYOND = "other masks and norms, and random values"

Row = tuple[str, int, str, float]


@dataclass(frozen=True)
class Config(kit.Config):
    """Suitable values, controls that should collapse, and what lies beyond the claim.

    Every start is followed for ``layers`` layers and four times as many: a level may not last.
    ``least`` is the share of starts above rank one from which they are a general class.
    """

    starts: int = 200
    layers: int = 50
    every: int = 5
    """Layers between those that are recorded."""
    draws: int = 3
    """How many random weights share the starts, where weights are random."""
    least: float = 0.02
    suitable: tuple[Dynamics, ...] = (
        Dynamics("2 tokens of 2 features", tokens=2),
        Dynamics("8 tokens of 2 features"),
        Dynamics("16 tokens of 4 features", tokens=16, width=4),
        Dynamics("skewed values, uniform attention", "skewed", "uniform", tokens=2, decay=0.5),
    )
    controls: tuple[Dynamics, ...] = (
        Dynamics("orthogonal values", "orthogonal"),
        Dynamics("orthogonal values, uniform", "orthogonal", "uniform", 16, 4),
    )
    others: tuple[Dynamics, ...] = (
        Dynamics("full mask", mask="full"),
        Dynamics("LayerNorm", tokens=16, width=4, norm="layer", strength=4.0),
        Dynamics("RMSNorm", tokens=16, width=4, norm="rms", strength=2.0),
        Dynamics("random values and scores", "random", "random", 16, 4, strength=1.0),
    )

    @property
    def cases(self) -> tuple[Dynamics, ...]:
        """All of them."""
        return (*self.suitable, *self.controls, *self.others)


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Follow every case from many starts: differences in scaled arithmetic, ranks in float64.

    A start is above rank one where its tokens differ in scaled arithmetic and their second singular
    value is a hundredth of the first or more. Tokens at two opposite poles differ, and yet have
    rank one: the two shares are kept apart.
    """
    rows: list[Row] = []
    notes: dict[str, str] = {}
    for case, on_case in kit.tracked(config.cases, on_step):
        found, doubts = follow(config, case, on_case)
        rows += found
        notes |= doubts
    table = tables.from_rows(("variant", "layer", "metric", "value"), rows)
    judgement, beyond, sentences = judge(config, table)
    kept = [_ends(table, case.name, ABOVE, config)[1] for case in config.suitable]
    return ENTRY.result(
        config,
        question="Do starts in general position stay above rank one, and stay there?",
        sentences=sentences,
        table=table,
        about={"residuals": "Frobenius norm"},
        notes=notes,
        judgement=judgement,
        beyond=beyond,
        key_figures={"starts above rank one, largest share": max(kept)},
        drawings=(
            kit.Drawing("by_depth", "A curve for each kind of values, mask and norm.", ABOVE),
        ),
        shown=(ABOVE, APART),
    )


def follow(config: Config, case: Dynamics, on_step: kit.OnStep) -> tuple[list[Row], dict[str, str]]:
    """The shares of the starts that differ and that are above rank one, layer by layer."""
    draws = config.draws if case.values == "random" else 1
    depth, count = 4 * config.layers, config.starts // draws
    recorded = range(0, depth + 1, config.every)
    traces, ratios, ranks, radii = [], [], [], []
    for draw, _ in kit.tracked(range(draws), on_step):
        network = build(case, depth, config.seed + draw)
        x = starts(case, count, config.seed + draw)
        traces.append(deep_trace(network, x, norm="fro"))
        with torch.no_grad():
            states = [x, *network.states(x)]
        found = [spectra(states[layer]) for layer in recorded]
        ratios.append(torch.stack([each.spectral_ratio() for each in found]))
        ranks.append(found[-1].stable_rank())
        step = build(case, 1, config.seed + draw)
        radii += _radius_at_rest(step, states[-1][ratios[-1][-1] > _DIFFERENT])
    relative = _by_layer(Trace.joined(traces), recorded)
    apart = relative > math.log10(_DIFFERENT)
    above = apart & (torch.cat(ratios, 1) > _DIFFERENT)
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
    """Relative residuals ``(layer, sample)`` at the layers that are recorded."""
    rows = traced.table.filter(pl.col("layer").is_in(recorded), metric=depths.RELATIVE)
    values = torch.tensor(rows.sort("layer", "sample")["value"].to_list())
    return values.reshape(len(recorded), -1)


def judge(
    config: Config, table: pl.DataFrame
) -> tuple[kit.Judgement, kit.Judgement | None, tuple[str, ...]]:
    """Suitable values keep a share of the starts above rank one; orthogonal ones keep none apart.

    A case keeps them if at least ``config.least`` of the starts are above rank one in the end, and
    no fewer than nine of ten of those that were so after a quarter of the layers.
    """

    def keeps(case: Dynamics) -> bool:
        before, after = _ends(table, case.name, ABOVE, config)
        return after >= config.least and after >= _LASTING * before

    suitable = {case.name: keeps(case) for case in config.suitable}
    controls = {
        case.name: _ends(table, case.name, APART, config)[1] == 0.0 for case in config.controls
    }
    others = {case.name: keeps(case) for case in config.others}
    shares = [_ends(table, case.name, ABOVE, config)[1] for case in config.suitable]
    cases = suitable | controls
    on = (
        f"for {min(shares):.0%} to {max(shares):.0%} of random starts"
        if all(cases.values())
        else ""
    )
    return (
        kit.judged(ENTRY.domain, cases, on),
        kit.judged(_BEYOND, others, _on(others)) if others else None,
        tuple(_sentence(config, table, case) for case in config.cases),
    )


def _on(others: Mapping[str, bool]) -> str:
    kept = [name for name, keeps in others.items() if keeps]
    if not 0 < len(kept) < len(others):
        return ""
    lost = ", ".join(name for name in others if name not in kept)
    return f"the case: {', '.join(kept)} keep a share above rank one; {lost} none"


def _ends(table: pl.DataFrame, name: str, metric: str, config: Config) -> tuple[float, float]:
    """A share after a quarter of the layers and after all."""
    rows = dict(table.filter(variant=name, metric=metric).select("layer", "value").iter_rows())
    return rows[config.layers], rows[4 * config.layers]


def _sentence(config: Config, table: pl.DataFrame, case: Dynamics) -> str:
    apart = _ends(table, case.name, APART, config)[1]
    before, above = _ends(table, case.name, ABOVE, config)
    words = (
        f"{case.name[:1].upper()}{case.name[1:]}: after {plural(4 * config.layers, 'layer')} "
        f"{apart:.0%} of the starts still differ, {above:.0%} are above rank one"
    )
    if before != above:
        words += f" ({before:.0%} after {config.layers})"
    known = {
        metric: table.filter(variant=case.name, metric=metric)["value"].to_list()
        for metric in (STABLE, RADIUS)
    }
    if known[STABLE]:
        words += f"; median stable rank of those that differ {short(known[STABLE][0])}"
    if known[RADIUS]:
        kind = "stable" if known[RADIUS][0] < 1 else "not stable"
        words += f"; one at rest has spectral radius {short(known[RADIUS][0])}, {kind}"
    return f"{words}."
