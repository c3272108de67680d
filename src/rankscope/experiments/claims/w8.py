"""Claim W8: with as many features as tokens almost every start collapses under a norm.

The theorem of Wu et al. 2024 for orthogonal values needs tokens in one open half-space (claim W3).
N tokens in general position in ``d ≥ N`` features always lie in one: they are linearly independent,
so that some u has ``u·x_i = 1`` for all of them. For fewer features Wendel (1962) has the chance of
it, for tokens of any law that is symmetric about 0 and has a density:

    P = 2^(1−N) Σ_{k<d} C(N−1, k).

For ``d < N`` there are starts outside of every half-space, and some of them never collapse: tokens
once around a circle, each of which sees itself and its two neighbours (theory, section 7).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.arguments import checked
from rankscope.core.deep import deep_trace
from rankscope.core.theory import UNEVEN
from rankscope.errors import InputError
from rankscope.experiments import depths, kit
from rankscope.experiments.norm_cases import RING, NormSetting, mask_of, random_network
from rankscope.numerals import plural, short
from rankscope.process import require
from rankscope.streams import stream

ENTRY = kit.claim(
    "W8",
    "With at least as many features as tokens almost every start lies in one open half-space, so "
    "that it collapses under a norm, orthogonal values and a mask with a center.",
    source="Wu et al. 2024, theorem on LayerNorm (as summarised)",
    question="Do all random starts lie in a half-space, and do all of them collapse?",
    domain="one head on the sphere, orthogonal values, a mask with a center, at least as many "
    "features as tokens",
    beyond="fewer features than tokens",
    seconds=16,
    metrics=(
        kit.Metric(
            "half_space_share",
            "Starts in a half-space",
            "share",
            "linear",
            "1 = the theorem covers every start",
            "The share of random starts whose tokens all lie in one open half-space.",
            includes=(0.0, 1.0),
        ),
        kit.Metric(
            "collapsed_share",
            "Starts that collapse",
            "share",
            "linear",
            "1 = every start collapses",
            "The share of random starts whose relative dispersion is small after the last layer.",
            includes=(0.0, 1.0),
        ),
    ),
)
SHARE, COLLAPSED = "half_space_share", "collapsed_share"
COUNTED, WENDEL, OUTSIDE = "counted", "Wendel 1962", "outside of every half-space"
CHARTS = (
    kit.Drawing("by_setting", "A panel for each number of tokens.", SHARE),
    kit.Drawing(
        "by_depth", "Medians over starts and draws.", depths.RELATIVE_DISPERSION, {"lowest": -30.0}
    ),
)
_RARE = 1e-4  # a share that would be as far off Wendel's as seldom as this is another one
_POSITIVE = 1e-9  # what a linear program leaves of 0


@checked
@dataclass(frozen=True)
class WidthRun:
    """A mask and how many tokens of how many features; ``logits`` is about their deviation."""

    mask: str
    width: int
    tokens: int
    logits: float = 1.0

    def __str__(self) -> str:
        return f"{self.mask}, {self.tokens} tokens, {self.width} features"


@dataclass(frozen=True)
class Config(kit.Config):
    """Random starts on the sphere, counted in half-spaces and followed through random layers."""

    widths: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 16)
    tokens: tuple[int, ...] = (4, 8, 16)
    starts: int = 200
    covered: tuple[WidthRun, ...] = (
        *(WidthRun(mask, 8, 8) for mask in ("full", "causal", "window:2")),
        WidthRun("window:2", 16, 8),
        WidthRun(RING, 8, 8, 0.0),
    )
    fewer: tuple[WidthRun, ...] = (
        *(WidthRun(mask, 4, 8) for mask in ("full", "causal")),
        WidthRun(RING, 3, 8, 0.0),
        WidthRun(RING, 2, 8, 0.0),
    )
    followed: int = 32  # starts that share their weights
    draws: int = 2
    layers: int = 50
    reached: float = -2.0  # log10 of the relative dispersion from which on a start has collapsed


def measure(config: Config, on_step: kit.OnStep) -> kit.Measured[None]:
    """Count starts in half-spaces, and follow others in scaled arithmetic."""
    if any(run.width < run.tokens for run in config.covered):
        raise InputError("covered runs have at least as many features as tokens.")
    if not config.covered or any(run.width >= run.tokens for run in config.fewer):
        raise InputError("covered is empty, or runs in fewer have no fewer features than tokens.")
    on_counts, on_runs = kit.parts(on_step, 1, 1)
    rows: list[tuple[object, ...]] = []
    for tokens, on_tokens in kit.tracked(config.tokens, on_counts):
        panel = f"{tokens} tokens"
        for width, _ in kit.tracked(config.widths, on_tokens):
            x = draw_starts(config.seed, config.starts, tokens, width)
            share = sum(map(in_half_space, x)) / config.starts
            rows.append((panel, COUNTED, float(width), SHARE, share))
            rows.append((panel, WENDEL, float(width), SHARE, wendel(tokens, width)))
    names = ("model", "variant", "setting", "metric", "value")
    counted = tables.joined({"features": tables.from_rows(names, rows)}, column="parameter")
    parts, notes = [counted], dict[str, str]()
    for run, on_run in kit.tracked((*config.covered, *config.fewer), on_runs):
        for draw, _ in kit.tracked(range(config.draws), on_run):
            table, doubts = follow(config, run, draw)
            parts.append(table)
            notes |= doubts
    return kit.Measured(tables.stack(parts), notes, about={"dispersion": "Frobenius norm"})


def follow(config: Config, run: WidthRun, draw: int) -> tuple[pl.DataFrame, Mapping[str, str]]:
    """The relative dispersion of every start, layer by layer, and what becomes of them."""
    logits = run.logits * run.width
    mask = mask_of(run.mask, run.tokens)
    setting = NormSetting(
        mask, 1, run.width, logits, "orthogonal", norm="sphere", tokens=run.tokens
    )
    network = random_network(setting, config.layers, config.seed + draw)
    x = draw_starts(config.seed + draw, config.followed, run.tokens, run.width, str(run))
    traced = deep_trace(network, x, norm="fro")
    curves = depths.dispersions(traced.table).filter(metric=depths.RELATIVE_DISPERSION)
    last = curves.filter(layer=config.layers).sort("sample")["value"].to_list()
    outside = [not in_half_space(start) for start in x]
    fallen = [value < config.reached for value in last]
    figures = {
        COUNTED: sum(fallen) / len(fallen),
        OUTSIDE: sum(fell for fell, out in zip(fallen, outside, strict=True) if out)
        / (sum(outside) or math.nan),
    }
    shares = tables.from_rows(
        ("variant", "sample", "metric", "value"),
        [(name, draw, COLLAPSED, value) for name, value in figures.items() if value == value],
    )
    numbered = curves.with_columns(
        pl.col("sample") + draw * config.followed, variant=pl.lit(COUNTED)
    )
    doubts = depths.doubts({f"{run}, draw {draw + 1}": traced})
    return tables.joined({str(run): tables.stack([numbered, shares])}, column="model"), doubts


def draw_starts(seed: int, starts: int, tokens: int, width: int, *purpose: str) -> Tensor:
    """Tokens uniform on the sphere, ``(start, token, feature)``."""
    generator = stream(seed, "starts", tokens, width, *purpose)
    x = torch.randn(starts, tokens, width, generator=generator, dtype=torch.float64)
    lengths: Tensor = x.norm(dim=-1, keepdim=True)
    return x / lengths


def in_half_space(x: Tensor) -> bool:
    """Whether some u has ``u·x_i > 0`` for all tokens: the largest t with ``u·x_i ≥ t`` is not 0.

    A linear program, with every entry of u between −1 and 1.
    """
    tokens, width = x.shape
    rows = np.hstack([-x.numpy(), np.ones((tokens, 1))])
    bounds = [(-1.0, 1.0)] * width + [(0.0, None)]
    linprog = require("scipy.optimize").linprog
    solved = linprog([0.0] * width + [-1.0], A_ub=rows, b_ub=np.zeros(tokens), bounds=bounds)
    return bool(-solved.fun > _POSITIVE)


def wendel(tokens: int, width: int) -> float:
    """The chance that random tokens lie in one half-space (Wendel 1962)."""
    return sum(math.comb(tokens - 1, k) for k in range(width)) / float(2 ** (tokens - 1))


def judge(config: Config, measured: kit.Measured[None]) -> kit.Answer:
    """Every start in a half-space, and every start collapses; beyond, what fewer features do."""
    table = measured.table
    summary = tables.summary(table.filter(metric=depths.RELATIVE_DISPERSION))
    runs = (*config.covered, *config.fewer)
    laws = {
        run: depths.law_of_medians(summary, depths.RELATIVE_DISPERSION, UNEVEN, model=str(run))
        for run in runs
    }
    fallen, outside = (
        {
            run: fmean(shares) if shares else None
            for run in runs
            for shares in [
                table.filter(model=str(run), metric=COLLAPSED, variant=variant)["value"].to_list()
            ]
        }
        for variant in (COUNTED, OUTSIDE)
    )
    shares = compare(config, table)
    wide = [share for tokens, width, share, _ in shares if width >= tokens]
    rarest = min(chance for *_, chance in shares)
    staying = "; ".join(
        f"{run}, where {1 - (fallen[run] or 0.0):.0%} of the starts do not"
        for run in config.fewer
        if fallen[run] != 1.0
    )
    return kit.Answer(
        (
            f"All of {plural(config.starts, 'start')} lie in a half-space in "
            f"{wide.count(1.0)} of {plural(len(wide), 'shape')} with as many features as tokens or "
            "more.",
            f"Of {plural(len(shares), 'share')} of starts in a half-space the one farthest off "
            f"Wendel's would be as far off with a chance of {short(rarest)}.",
        ),
        stated={
            "every start in a half-space": all(share == 1.0 for share in wide),
            **{f"{run}: every start collapses": fallen[run] == 1.0 for run in config.covered},
            **{
                f"{run}: exponentially": laws[run].collapses
                for run in config.covered
                if laws[run].decided
            },
        },
        beyond={str(run): fallen[run] == 1.0 for run in config.fewer}
        | {"shares in half-spaces are those of Wendel 1962": rarest > _RARE},
        on_beyond={"depends": f"all starts collapse except under {staying}"} if staying else "",
        key_figures={
            "starts that collapse, smallest share": min(
                fallen[run] or 0.0 for run in config.covered
            ),
            "chance of a share in half-spaces farther off Wendel's": rarest,
        },
        listings=(
            kit.Listing(
                f"Random starts after {config.layers} layers",
                ("run", "collapse", "of those outside of every half-space", *depths.LAW_COLUMNS),
                tuple(
                    (str(run), fallen[run], outside[run], *depths.law_entries(laws[run]))
                    for run in runs
                ),
                f"Shares of the starts; the law is that of the medians. {depths.LAW_NOTE}",
            ),
        ),
    )


def compare(config: Config, table: pl.DataFrame) -> list[tuple[int, int, float, float]]:
    """Tokens, features, the share of starts in a half-space, and the chance to be as far off."""
    keys = ("model", "setting")
    rows = table.filter(metric=SHARE)
    counted = rows.filter(variant=COUNTED).select(*keys, share="value")
    test = require("scipy.stats").binomtest
    joined = counted.join(rows.filter(variant=WENDEL).select(*keys, "value"), on=keys)
    return [
        (
            int(panel.split()[0]),
            int(width),
            share,
            float(test(round(share * config.starts), config.starts, chance).pvalue),
        )
        for panel, width, share, chance in joined.iter_rows()
    ]
