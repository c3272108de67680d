"""Claim W3: with orthogonal values, tokens on the sphere in one half-space still collapse."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.deep import deep_trace
from rankscope.experiments.claims import Claim, overall
from rankscope.experiments.depths import RELATIVE
from rankscope.experiments.laws import Law, medians, power_of_ten
from rankscope.experiments.long_laws import long_law
from rankscope.masks import Explicit, Mask, as_mask
from rankscope.network import Network, Spec
from rankscope.network.norms import NormKind
from rankscope.streams import stream
from rankscope.theory import second_eigenvalue
from rankscope.tracing import Provenance, Trace

STATEMENT = (
    "Attention with one head, orthogonal values and a norm collapses at least exponentially if the "
    "tokens start in one open half-space and the mask has a center."
)
LAYERS, TOKENS, WIDTH = 100, 16, 8
"""More tokens than features: fewer, in general position, always lie in a half-space."""
SEEDS = 3
_SAMPLES = 3
_COLLAPSES = ("exponential", "doubly exponential", "equal")
_NORMS: Mapping[NormKind, str] = {"sphere": "sphere", "rms": "RMSNorm", "layer": "LayerNorm"}
_HALF, _PAIRS, _AROUND = "half-space", "opposite pairs", "around a circle"
_WAVER = 0.1
"""By how much tokens around a circle are off their even places, to see that they come back."""


def _ring() -> Mask:
    """Every token sees itself and its two neighbours, the first and the last being neighbours."""
    place = torch.arange(TOKENS)
    apart = (place[:, None] - place).abs()
    return Explicit.of((apart <= 1) | (apart == TOKENS - 1))


_MASKS: Mapping[str, Mask] = {
    "full": as_mask("full"),
    "causal": as_mask("causal"),
    "window:2": as_mask("window:2"),
    "ring": _ring(),
}


@dataclass(frozen=True)
class Run:
    """A network and where its tokens start; ``mask`` is a name from ``_MASKS``."""

    mask: str
    norm: NormKind = "sphere"
    start: str = _HALF
    width: int = WIDTH
    values: str = "orthogonal"
    logits: float = 1.0

    @property
    def panel(self) -> str:
        """What a run has in common with those it is drawn beside: all but the mask."""
        start = [] if self.start == _HALF else [self.start]
        values = [] if self.values == "orthogonal" else ["random values"]
        beyond = "beyond the claim: " if start or values else ""
        return beyond + ", ".join([_NORMS[self.norm], *start, *values])

    def __str__(self) -> str:
        shape = "" if self.width == WIDTH else f" ({self.width} features, uniform attention)"
        return f"{self.panel}, {self.mask}{shape}"


COVERED = (
    *(Run(mask, norm) for norm in _NORMS for mask in ("full", "causal", "window:2")),
    Run("ring", width=2, logits=0.0),
)
CONTRASTS = (
    *(Run(mask, start=_PAIRS) for mask in ("full", "causal", "window:2")),
    Run("ring", start=_AROUND, width=2, logits=0.0),
    *(Run(mask, values="lecun") for mask in ("causal", "full")),
)


def w3(
    *, layers: int = LAYERS, seed: int = 0, on_network: Callable[[], None] | None = None
) -> Claim:
    """Follow tokens on the sphere in scaled arithmetic; starts and values beyond the claim beside.

    Derived: a norm is a factor for each token, and orthogonal values W a turn of all of them, so
    ``x_i' = (Σ_j P_ij x_j) W / ‖…‖`` stays in the turned cone of the old tokens, and near the end,
    where P is uniform over what each token sees, every layer multiplies the residual by the second
    largest modulus among the eigenvalues of that averaging. LayerNorm centers too, which no turn of
    all features keeps, so that it is outside this reasoning and only measured.
    """
    runs = (*COVERED, *CONTRASTS)
    parts: dict[str, dict[str, pl.DataFrame]] = {}
    for run in runs:
        draws = Trace.joined([_trace(run, layers, seed + k) for k in range(SEEDS)])
        parts.setdefault(run.panel, {})[run.mask] = draws.table
        if on_network is not None:
            on_network()
    table = tables.joined(
        {panel: tables.joined(by_mask) for panel, by_mask in parts.items()}, column="model"
    )
    summary = tables.summary(table)
    found = {run: _law(summary, run) for run in runs}
    return Claim(
        "W3",
        STATEMENT,
        "Wu, Ajorlou, Wang, Jegelka, Jadbabaie 2024, on LayerNorm",
        overall({str(run): found[run].kind in _COLLAPSES for run in COVERED}),
        tuple(_reason(run, found[run], layers) for run in runs),
        table,
        summary,
        asdict(Provenance("attention and norm", spec=_about(layers), seed=seed))
        | {
            "input": f"{TOKENS} random tokens on the sphere, {SEEDS} × {_SAMPLES} draws",
            "norm": "fro",
        },
        metric=RELATIVE,
        figure="by_depth",
        lowest=-40.0,
    )


def steps() -> int:
    """How often ``on_network`` is called."""
    return len(COVERED) + len(CONTRASTS)


def _about(layers: int) -> str:
    return (
        f"1 head, width {WIDTH} (the ring: 2), {layers} layers, orthogonal values unless random, "
        "other weights lecun init, norm after attention; no skips, MLPs or biases"
    )


def _law(summary: pl.DataFrame, run: Run) -> Law:
    return long_law(medians(summary, RELATIVE, model=run.panel, variant=run.mask))


def start(kind: str, width: int, seed: int) -> Tensor:
    """Unit tokens ``(sample, token, feature)``: in one half-space, in opposite pairs (which no open
    half-space holds), or once around a circle, in almost even steps."""
    generator = stream(seed, "starts", kind, width)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    if kind == _AROUND:
        even = 2 * math.pi * torch.arange(TOKENS, dtype=torch.float64) / TOKENS
        angle = even + _WAVER * drawn(_SAMPLES, TOKENS)
        return torch.stack((angle.cos(), angle.sin()), -1)
    x = drawn(_SAMPLES, TOKENS, width)
    x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    if kind == _PAIRS:
        half = x[:, : TOKENS // 2]
        return torch.cat((half, -half), 1)
    toward = drawn(_SAMPLES, 1, width)
    side: Tensor = (x * toward).sum(-1, keepdim=True)
    return torch.where(side < 0, -x, x)


def _trace(run: Run, layers: int, seed: int) -> Trace:
    spec = Spec(
        layers,
        1,
        run.width,
        mlp_ratio=0.0,
        norm=run.norm,
        norm_place="post",
        norm_eps=1e-12,
        skip=False,
        bias=False,
        mask=_MASKS[run.mask],
        score_scale=run.logits / math.sqrt(run.width),
        init=run.values,
    )
    network = Network.random(spec, seed=seed, dtype=torch.float64)
    return deep_trace(network, start(run.start, run.width, seed), norm="fro")


def _reason(run: Run, law: Law, layers: int) -> str:
    told = f"{run}: relative residual {power_of_ten(law.last)} after {layers} layers; {law}"
    if law.kind == "exponential":
        factor = second_eigenvalue(_MASKS[run.mask], TOKENS)
        told += f" (uniform attention under this mask: {factor:.3g})"
    return f"{told}."
