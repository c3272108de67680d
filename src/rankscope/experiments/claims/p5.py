"""Claim P5: no softmax over logits of a given norm has less entropy than one key above all."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, cast

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from rankscope import tables
from rankscope.arguments import Range
from rankscope.core.network import Block, Init, Network, Spec
from rankscope.core.prediction import predict
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims._overlapping import (
    first_pattern,
    overlap_kernel,
    overlapping_tokens,
)
from rankscope.experiments.kit import Mean
from rankscope.numerals import short
from rankscope.streams import stream

ENTRY = kit.claim(
    "P5",
    "No row of attention over T tokens has less entropy than the worst logits of norm ‖W_K "
    "W_Qᵀ‖·‖XXᵀ‖, and some layer attains it.",
    source="Zhai et al. 2023, theorem on entropy",
    question="Is any row's entropy below the bound, and is the bound informative?",
    domain="one softmax over any tokens and weights, without mask and biases",
    beyond="whether the bound is informative for random layers",
    seconds=3,
    metrics=(
        kit.Metric(
            "upper_level_keys",
            "Keys that stand out",
            "keys",
            "linear",
            "How many keys share the upper logit at least entropy",
            "Of all logits of one norm that take two values, how many keys have the larger where "
            "the entropy is least.",
            includes=(1.0,),
        ),
    ),
)
PAPER = {"tokens": (16, 64, 256, 1024), "networks": 8}
_METRIC, _LEVELS = "attention_entropy", "upper_level_keys"
SMALLEST, MEAN, PREDICTED = "networks, smallest row", "networks, mean", "predicted, mean"
WEIGHTS, LOGITS = "bound from the weights", "bound from the logits themselves"
FOUND, ATTAINED, BOUND = "smallest found", "one query above all keys but one", "bound"
_BOUNDS = (WEIGHTS, LOGITS)
_ROUNDING = 1e-9
_TIGHT = 1e-3  # by which the smallest entropy found may exceed a bound that is said to be tight
_SAYS = 0.1  # of the smallest row's entropy, what a bound has to be to say anything
_LARGEST = 100.0  # norm of logits whose least entropy is looked for; beyond, it is rounding
CHARTS = (
    kit.Drawing(
        "by_setting",
        "Entropies of random layers and of the worst logits, and what bounds them.",
        _METRIC,
        roles={WEIGHTS: "bound", LOGITS: "bound", BOUND: "bound"},
    ),
)
Row = tuple[str, str, str, float, int, str, float]
Panels = Mapping[tuple[str, float], Mapping[str, list[float]]]
"""By panel and setting, the values of every variant."""


@dataclass(frozen=True)
class Config(kit.Config):
    """Random layers of one head at each scale of their weights, and the worst logits of a norm."""

    tokens: tuple[Annotated[int, Range(2, 4096)], ...] = (16, 64, 256)
    overlap: float = 0.1
    head_width: int = 64
    scales: tuple[float, ...] = (0.05, 0.25, 1.0, 2.0, 4.0)
    """What LeCun's weights are multiplied by; logits go with its square."""
    networks: int = 4
    draws: int = 8
    keys: tuple[Annotated[int, Range(2, 1024)], ...] = (2, 3, 5, 16, 64)
    norms: tuple[float, ...] = (0.5, 2.0, 5.0, 10.0)  # of logits whose least entropy is sought

    def spec(self, tokens: int, scale: float) -> Spec:
        init = Init("lecun", scale)
        return Spec.pure_attention(
            1, 1, tokens + 1, head_width=self.head_width, bias=False, init=init
        )


def measure(config: Config, on_step: kit.OnStep) -> pl.DataFrame:
    """The least entropy of a norm, found and proved, and random layers beside what it bounds."""
    if not (config.tokens and config.scales and config.keys and config.norms):
        raise InputError("P5 needs at least one length, scale, number of keys and norm.")
    if not all(0 < norm <= _LARGEST for norm in config.norms):
        raise InputError(f"norms={config.norms} are of logits, expected above 0, to {_LARGEST:g}.")
    on_worst, on_layers = kit.parts(on_step, 1, 1)
    rows = [*_worst(config, on_worst), *_layers(config, on_layers)]
    names = ("model", "parameter", "variant", "setting", "sample", "metric", "value")
    return tables.from_rows(names, rows)


def _worst(config: Config, on_step: kit.OnStep) -> Iterator[Row]:
    """Logits that descent finds, a layer that attains the bound, and how many keys stand out."""
    for (keys, norm), _ in kit.tracked(product(config.keys, config.norms), on_step):
        label = (f"{keys} keys", "norm of the logits")
        yield *label, BOUND, norm, 0, _METRIC, entropy_bound(norm, keys)
        yield *label, FOUND, norm, 0, _METRIC, least_entropy_found(norm, keys, config.seed)
        yield *label, ATTAINED, norm, 0, _METRIC, attaining_layer(norm, keys)
        yield *label, FOUND, norm, 0, _LEVELS, float(best_level(norm, keys))


def _layers(config: Config, on_step: kit.OnStep) -> Iterator[Row]:
    """Entropies of random layers by row, and both bounds: from the weights, from the logits."""
    for tokens, on_tokens in kit.tracked(config.tokens, on_step):
        label = (f"{tokens} tokens", "scale of the weights")
        x = overlapping_tokens(tokens, tokens + 1, config.overlap, config.seed)
        kernel = overlap_kernel(tokens, config.overlap)
        for scale, _ in kit.tracked(config.scales, on_tokens):
            spec = config.spec(tokens, scale)
            for draw in range(config.networks):
                network = Network.random(spec, seed=config.seed + draw, dtype=torch.float64)
                for variant, value in _entropies(network, x).items():
                    yield *label, variant, scale, draw, _METRIC, value
            predicted = predict(spec, kernel=kernel, draws=config.draws, seed=config.seed)
            for draw, value in enumerate(predicted.values[_METRIC][1].flatten().tolist()):
                yield *label, PREDICTED, scale, draw, _METRIC, value


@torch.no_grad()
def _entropies(network: Network, x: Tensor) -> dict[str, float]:
    """The smallest row's entropy, the mean, and the bounds on the smallest."""
    attention = cast(Block, network.blocks[0]).attention
    query_key = attention.query.weight.T @ attention.key.weight * network.spec.score_scale
    logits = x @ query_key @ x.T
    assert torch.allclose(first_pattern(network, x)[0], logits.softmax(-1), atol=1e-9)
    by_row = entropies(logits)
    lowest = logits[int(by_row.argmin())]
    weights = torch.linalg.matrix_norm(query_key, 2) * torch.linalg.matrix_norm(x, 2) ** 2
    return {
        SMALLEST: float(by_row.min()),
        MEAN: float(by_row.mean()),
        WEIGHTS: entropy_bound(float(weights), len(x)),
        LOGITS: entropy_bound(float((lowest - lowest.mean()).norm()), len(x)),
    }


def judge(_: Config, table: pl.DataFrame) -> kit.Answer:
    """Below the bound is false; attained is tight; a tenth of the measured value is informative.

    The claim holds if no row of a random layer has less entropy than either bound, if descent finds
    nothing below the bound and comes within a thousandth of it, if one layer attains it, and if of
    all two-level logits those with one key above the others have the least entropy. Beyond it, at
    each size and scale the bound from the weights is informative if it is a tenth or more of the
    smallest row's entropy in every network.
    """
    panels: dict[tuple[str, float], dict[str, list[float]]] = {}
    rows = table.filter(metric=_METRIC).select("model", "setting", "variant", "value")
    for model, setting, variant, value in rows.iter_rows():
        panels.setdefault((model, setting), {}).setdefault(variant, []).append(value)
    layers = {key: values for key, values in panels.items() if SMALLEST in values}
    worst = [values for values in panels.values() if FOUND in values]
    over = [values[FOUND][0] / values[BOUND][0] for values in worst]
    says = {
        f"{size}, weights × {scale:g}": min(_shares(values, WEIGHTS)) >= _SAYS
        for (size, scale), values in layers.items()
    }
    holds = [case for case, ok in says.items() if ok]
    return kit.Answer(
        (
            *(_sentence(size, layers) for size in dict.fromkeys(size for size, _ in layers)),
            f"Descent over logits of a norm ends {short(max(over) - 1, digits=1)} of the bound "
            f"above it, or less, in {len(worst)} cases.",
        ),
        stated={
            "random layers": all(
                _none_below(values[SMALLEST], values[bound])
                for values, bound in product(layers.values(), _BOUNDS)
            ),
            "descent": all(_none_below(values[FOUND], values[BOUND]) for values in worst),
            "tightness": all(
                values[variant][0] <= values[BOUND][0] * (1 + _TIGHT)
                for values, variant in product(worst, (FOUND, ATTAINED))
            ),
            "one key above": set(table.filter(metric=_LEVELS)["value"].to_list()) == {1.0},
        },
        beyond=says,
        on_beyond={
            "depends": f"the bound is informative in {len(holds)} of "
            f"{len(says)} settings: {'; '.join(holds)}"
        },
        key_figures={
            "smallest entropy found over the bound, largest": max(over),
            "settings in which the bound is informative, share": len(holds) / len(says),
        },
    )


def _none_below(measured: Sequence[float], bounds: Sequence[float]) -> bool:
    """Whether no entropy is below its bound by more than rounding."""
    return all(
        entropy >= bound * (1 - _ROUNDING) - _ROUNDING
        for entropy, bound in zip(measured, bounds, strict=True)
    )


def _shares(values: Mapping[str, list[float]], bound: str) -> list[float]:
    """The bound over the smallest row's entropy, network by network."""
    pairs = zip(values[bound], values[SMALLEST], strict=True)
    return [low / row if row else 1.0 for low, row in pairs]


def _sentence(size: str, layers: Panels) -> str:
    by_scale = {scale: values for (name, scale), values in layers.items() if name == size}
    weights, logits = (
        ", ".join(f"{min(_shares(values, bound)):.0%}" for values in by_scale.values())
        for bound in _BOUNDS
    )
    off = max(
        Mean.of(values[MEAN]).errors_from(Mean.of(values[PREDICTED]))
        for values in by_scale.values()
    )
    scales = ", ".join(f"{scale:g}" for scale in by_scale)
    return (
        f"{size}, weights × {scales}: of the smallest row's entropy the bound from the weights is "
        f"{weights}, and that from the row's own logits {logits}; mean entropies of networks and "
        f"predictions differ by {short(off, digits=2)} standard errors at most."
    )


def level_entropy(norm: float, keys: int, top: int) -> float:
    """The entropy where ``top`` of the keys share one logit and all others another, centred.

    >>> round(level_entropy(0.0, 4, 1) - math.log(4), 12)
    0.0

    Logits of mean 0 and norm σ on two levels, k keys on the upper one, differ by
    ``δ = σ√(T/(k(T − k)))``; with ``Z = k + (T − k)e^(−δ)`` the entropy is
    ``log Z + δ(T − k)e^(−δ)/Z``.
    """
    gap = norm * math.sqrt(keys / (top * (keys - top)))
    rest = (keys - top) * math.exp(-gap)
    total = top + rest
    return math.log(total) + gap * rest / total


def entropy_bound(norm: float, keys: int) -> float:
    """The least entropy of softmax over T keys whose logits, once centred, have norm σ at most.

    >>> round(entropy_bound(3.0, 5), 4)
    0.5421

    Zhai et al. 2023, theorem 3.1: one key above all others. Derived: along a ray the entropy falls,
    ``dH/dβ = −β Var_β(u)``, so that the norm is σ at the minimum, with a multiplier λ > 0. There
    ``p(log p + H) − λ log p`` is the same for every key's weight p, and is strictly convex in p, so
    that weights take two values at most. What is left are the two-level logits of
    ``level_entropy``; that one key on the upper level is best is checked (``best_level``), not
    proved here.
    """
    return level_entropy(norm, keys, 1) if keys > 1 else 0.0


def best_level(norm: float, keys: int) -> int:
    """How many keys are on the upper level where the entropy is least; the least of equals."""
    return min(range(1, keys), key=lambda top: (level_entropy(norm, keys, top), top))


def least_entropy_found(
    norm: float, keys: int, seed: int, *, starts: int = 16, steps: int = 400
) -> float:
    """The smallest entropy that descent finds over logits of this norm, from random starts."""
    generator = stream(seed, "least entropy", keys)
    logits = torch.randn(starts, keys, generator=generator, dtype=torch.float64)
    # From wide logits on, the weights of most keys vanish and with them the gradient: grow slowly.
    for step in range(steps):
        size = norm * min(1.0, 2 * (step + 1) / steps)
        logits = _on_sphere(logits, size).requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(entropies(logits).sum(), logits)
        slope = slope - slope.mean(-1, keepdim=True)
        length = slope.norm(dim=-1, keepdim=True).clamp(min=1e-300)
        logits = (logits - 0.3 * size * slope / length).detach()
    return float(entropies(_on_sphere(logits, norm)).min())


def entropies(logits: Float[Tensor, "... key"]) -> Float[Tensor, "..."]:
    """In nats."""
    logs = logits.log_softmax(-1)
    return -(logs.exp() * logs).sum(-1)


def _on_sphere(logits: Tensor, norm: float) -> Tensor:
    centred = logits - logits.mean(-1, keepdim=True)
    length: Tensor = centred.norm(dim=-1, keepdim=True)
    return norm * centred / length


def attaining_layer(norm: float, keys: int) -> float:
    """The entropy of the first row of a layer whose weights and tokens have σ = ``norm``.

    Tokens are orthonormal, ``X = I``, and ``W_QK = e₁uᵀ`` with u the worst logits: then
    ``‖W_QK‖₂‖X‖₂² = ‖u‖``, and the first query has just those logits.
    """
    u = torch.full((keys,), -1 / (keys - 1), dtype=torch.float64)
    u[0] = 1.0
    u = norm * u / u.norm()
    x = torch.eye(keys, dtype=torch.float64)
    weights = torch.outer(x[0], u)
    size = float(torch.linalg.matrix_norm(weights, 2) * torch.linalg.matrix_norm(x, 2) ** 2)
    assert math.isclose(size, norm, rel_tol=1e-9)
    return float(entropies(x @ weights @ x.T)[0])
