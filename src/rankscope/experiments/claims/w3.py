"""Claim W3: with orthogonal values, tokens on the sphere in one half-space still collapse."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.arguments import checked
from rankscope.core.deep import deep_trace
from rankscope.core.network import NormKind
from rankscope.core.theory import UNEVEN, Law, as_stated, second_eigenvalue
from rankscope.core.tracing import Trace
from rankscope.experiments import depths, kit
from rankscope.experiments.norm_cases import RING, NormSetting, mask_of, random_network
from rankscope.streams import stream

ENTRY = kit.claim(
    "W3",
    "Attention with one head, orthogonal values and a norm collapses at least exponentially if "
    "the tokens start in one open half-space and the mask has a center.",
    source="Wu et al. 2024, theorem on LayerNorm (as summarised)",
    question="Do tokens that start in one half-space end at one point, and how fast?",
    domain="one head, orthogonal values, a norm without centering, tokens in one open half-space",
    beyond="tokens in no common half-space, values that are not orthogonal, a norm that centers; "
    "and whether the rate is the derived one",
    seconds=95,
)
CHARTS = (
    kit.Drawing(
        "by_depth",
        "A panel for each norm, start and kind of values, a curve for each mask.",
        depths.RELATIVE_DISPERSION,
        {"lowest": -40.0},
    ),
)
_OUTSIDE = "beyond the claim: "
"""A mask beside those that have names everywhere."""
HALF, PAIRS, AROUND = "half-space", "opposite pairs", "around a circle"
"""Where tokens start."""
_NORMS: Mapping[NormKind, str] = {"sphere": "sphere", "rms": "RMSNorm", "layer": "LayerNorm"}
_CENTERING: tuple[NormKind, ...] = ("layer",)
"""Norms that no turn of all features commutes with, so that the theorem is not about them."""
_MASKS = ("full", "causal", "window:2")
_NEAR = 0.02  # by how much the measured factor per layer may differ from the derived one


@checked
@dataclass(frozen=True)
class HalfSpaceRun:
    """A network and where its tokens start; ``mask`` is a name, ``ring`` among others."""

    mask: str
    norm: NormKind = "sphere"
    start: str = HALF
    width: int = 8
    values: str = "orthogonal"
    logits: float = 1.0

    @property
    def panel(self) -> str:
        """What a run has in common with those it is drawn beside: all but the mask."""
        start = [] if self.start == HALF else [self.start]
        values = [] if self.values == "orthogonal" else ["random values"]
        outside = start or values or self.norm in _CENTERING
        return (_OUTSIDE if outside else "") + ", ".join([_NORMS[self.norm], *start, *values])

    @property
    def attention(self) -> str:
        """What is said of its attention where that is uniform."""
        return f" ({self.width} features, uniform attention)" if self.logits == 0 else ""

    def __str__(self) -> str:
        return f"{self.panel}, {self.mask}{self.attention}"


@dataclass(frozen=True)
class Config(kit.Config):
    """One head, a norm after it, no skips, MLPs or biases; every run has ``draws`` of weights.

    There are more tokens than features: fewer, in general position, always lie in a half-space.
    ``waver`` is by how much tokens around a circle are off their even places, to see that they come
    back.
    """

    layers: int = 100
    tokens: int = 16
    samples: int = 3
    draws: int = 3
    waver: float = 0.1
    covered: tuple[HalfSpaceRun, ...] = (
        *(HalfSpaceRun(mask, norm) for norm in _NORMS if norm not in _CENTERING for mask in _MASKS),
        HalfSpaceRun(RING, width=2, logits=0.0),
    )
    contrasts: tuple[HalfSpaceRun, ...] = (
        *(HalfSpaceRun(mask, norm) for norm in _CENTERING for mask in _MASKS),
        *(HalfSpaceRun(mask, start=PAIRS) for mask in _MASKS),
        HalfSpaceRun(RING, start=AROUND, width=2, logits=0.0),
        *(HalfSpaceRun(mask, values="lecun") for mask in ("causal", "full")),
    )

    @property
    def runs(self) -> tuple[HalfSpaceRun, ...]:
        """All of them."""
        return (*self.covered, *self.contrasts)


def measure(config: Config, on_step: kit.OnStep) -> depths.Measured:
    """Follow tokens on the sphere in scaled arithmetic; starts and values beyond the claim beside.

    Derived: a norm is a factor for each token, and orthogonal values W a turn of all of them, so
    ``x_i' = (Σ_j P_ij x_j) W / ‖…‖`` stays in the turned cone of the old tokens, and near the end,
    where P is uniform over what each token sees, every layer multiplies the residual by the second
    largest modulus among the eigenvalues of that averaging. LayerNorm centers too, which no turn of
    all features keeps, so that it is outside this reasoning and only measured.
    """
    traces: dict[str, Trace] = {}
    panels: dict[str, dict[str, pl.DataFrame]] = {}
    for run, _ in kit.tracked(config.runs, on_step):
        mask = mask_of(run.mask, config.tokens)
        setting = NormSetting(mask, 1, run.width, run.logits, run.values, norm=run.norm)
        draws = [
            deep_trace(
                random_network(setting, config.layers, seed),
                start(config, run.start, run.width, seed),
                norm="fro",
            )
            for seed in range(config.seed, config.seed + config.draws)
        ]
        traced = traces[str(run)] = Trace.joined(draws, of_draws=True)
        panels.setdefault(run.panel, {})[run.mask] = depths.dispersions(traced.table)
    by_panel = {panel: tables.joined(by_mask) for panel, by_mask in panels.items()}
    return depths.Measured(
        tables.joined(by_panel, column="model"),
        depths.doubts(traces),
        about={"dispersion": "Frobenius norm"},
    )


def judge(config: Config, measured: depths.Measured) -> kit.Answer:
    """Whether the tokens of every run collapse, as far as its layers show a law.

    The theorem says "exponentially"; its constant is not known here. A covered run supports it if
    it falls at least exponentially. Beyond, its factor per layer is compared with the derived one,
    the second largest modulus of the eigenvalues of uniform attention.
    """
    by_run = laws(config, measured.table)
    covered, contrasts = (
        as_stated({str(run): by_run[run] for run in runs}, lambda _, law: law.collapses)
        for runs in (config.covered, config.contrasts)
    )
    staying = [case.removeprefix(_OUTSIDE) for case, fell in contrasts.items() if not fell]
    slowest = max((by_run[run].rate for run in config.covered), default=math.nan)
    rates = {
        f"{run}: derived rate": abs(10 ** by_run[run].rate - uniform_factor(config, run)) < _NEAR
        for run in config.covered
        if by_run[run].kind == "exponential"
    }
    slower = [case for case, near in rates.items() if not near]
    return kit.Answer(
        _sentences(config, by_run),
        stated=covered,
        beyond=contrasts | rates,
        on_beyond={"depends": f"supported except for: {'; '.join([*staying, *slower])}"},
        key_figures={"slowest of the covered runs, decades a layer": slowest},
        listings=(_listing(config, by_run),),
    )


def uniform_factor(config: Config, run: HalfSpaceRun) -> float:
    """What a layer of uniform attention multiplies differences by near the end (derived)."""
    return second_eigenvalue(mask_of(run.mask, config.tokens), config.tokens)


def laws(config: Config, table: pl.DataFrame) -> dict[HalfSpaceRun, Law]:
    """The law of every run, by the medians over samples and draws."""
    summary = tables.summary(table)
    return {
        run: depths.law_of_medians(
            summary, depths.RELATIVE_DISPERSION, UNEVEN, model=run.panel, variant=run.mask
        )
        for run in config.runs
    }


def start(config: Config, kind: str, width: int, seed: int) -> Tensor:
    """Unit tokens ``(sample, token, feature)``: in one half-space, in opposite pairs (which no open
    half-space holds), or once around a circle, in almost even steps."""
    generator = stream(seed, "starts", kind, width)
    samples, tokens = config.samples, config.tokens

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    if kind == AROUND:
        even = 2 * math.pi * torch.arange(tokens, dtype=torch.float64) / tokens
        angle = even + config.waver * draw(samples, tokens)
        return torch.stack((angle.cos(), angle.sin()), -1)
    x = draw(samples, tokens, width)
    x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    if kind == PAIRS:
        half = x[:, : tokens // 2]
        return torch.cat((half, -half), 1)
    toward = draw(samples, 1, width)
    side: Tensor = (x * toward).sum(-1, keepdim=True)
    return torch.where(side < 0, -x, x)


def _sentences(config: Config, by_run: Mapping[HalfSpaceRun, Law]) -> Iterator[str]:
    """How many runs collapse that the claim covers, and others; which show no law."""
    for words, runs in (("covers", config.covered), ("does not cover", config.contrasts)):
        decided = [by_run[run] for run in runs if by_run[run].decided]
        if decided:
            fallen = sum(law.collapses for law in decided)
            yield (
                f"Tokens end at one point in {fallen} of {len(decided)} runs that the claim "
                f"{words}."
            )
    undecided = [str(run) for run, law in by_run.items() if not law.decided]
    if undecided:
        yield f"Too few layers, or too uneven, to see a law: {', '.join(undecided)}."


def _listing(config: Config, by_run: Mapping[HalfSpaceRun, Law]) -> kit.Listing:
    """The law of every run, beside what uniform attention under its mask does near the end."""
    rows = []
    for run, law in by_run.items():
        uniform = None
        if law.kind == "exponential":
            uniform = uniform_factor(config, run)
        mask = f"{run.mask}{run.attention}"
        rows.append((run.panel, mask, *depths.law_entries(law), uniform))
    return kit.Listing(
        f"Relative dispersion after {config.layers} layers",
        ("norm, start, values", "mask", *depths.LAW_COLUMNS, "uniform"),
        tuple(rows),
        f"Medians over samples and draws. {depths.LAW_NOTE} Uniform: what a layer of uniform "
        "attention under this mask multiplies it by near the end (derived).",
    )
