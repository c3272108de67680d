"""The least entropy that softmax can have over logits of a given norm."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, cast

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from rankscope import tables
from rankscope.arguments import Range
from rankscope.core.network import Block, Init, Network, Spec, Visibility
from rankscope.core.prediction import predict
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims._overlapping import overlap_kernel, overlapping_tokens
from rankscope.experiments.kit import Mean
from rankscope.numerals import short
from rankscope.streams import stream


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


ENTRY = kit.claim(
    "P5",
    "No row of attention over T tokens has less entropy than the worst logits of norm ‖W_K "
    "W_Qᵀ‖·‖XXᵀ‖ have, and some layer has as little.",
    source="Zhai et al. 2023, theorem on entropy",
    domain="one softmax over any tokens and weights, without mask and biases",
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
_ROUNDING = 1e-9
_TIGHT = 1e-3
"""By which the smallest entropy found may exceed a bound that is said to be tight."""
_SAYS = 0.1
"""Of the smallest row's entropy, what a bound has to be to say anything."""
_LARGEST = 100.0
"""The largest norm of logits whose least entropy is looked for; beyond, it is rounding."""
_BEYOND = "whether the bound says anything about random layers"

Row = tuple[str, str, str, float, int, str, float]


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
    norms: tuple[float, ...] = (0.5, 2.0, 5.0, 10.0)
    """Of the logits whose least entropy is looked for."""

    def spec(self, tokens: int, scale: float) -> Spec:
        return Spec.pure_attention(
            1,
            1,
            tokens + 1,
            head_width=self.head_width,
            bias=False,
            init=Init("lecun", scale),
        )


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """The least entropy of a norm, found and proved, and random layers beside what it bounds."""
    if not (config.tokens and config.scales and config.keys and config.norms):
        raise InputError("P5 needs at least one length, scale, number of keys and norm.")
    if not all(0 < norm <= _LARGEST for norm in config.norms):
        raise InputError(f"norms={config.norms} are of logits, expected above 0, to {_LARGEST:g}.")
    on_worst, on_layers = kit.parts(on_step, 1, 1)
    rows = [*_worst(config, on_worst), *_layers(config, on_layers)]
    names = ("model", "variant", "parameter", "setting", "sample", "metric", "value")
    table = tables.from_rows(names, rows)
    judgement, beyond, sentences = judge(table)
    return ENTRY.result(
        config,
        question="Is any row's entropy below the bound, and does the bound say anything?",
        sentences=sentences,
        table=table,
        judgement=judgement,
        beyond=beyond,
        key_figures=_key_figures(table),
        drawings=(
            kit.Drawing(
                "by_setting",
                "Entropies of random layers and of the worst logits, and what bounds them.",
                _METRIC,
                roles={WEIGHTS: "bound", LOGITS: "bound", BOUND: "bound"},
            ),
        ),
        shown=(_METRIC,),
    )


def _worst(config: Config, on_step: kit.OnStep) -> Iterator[Row]:
    """Logits that descent finds, a layer that attains the bound, and how many keys stand out."""
    for keys, on_keys in kit.tracked(config.keys, on_step):
        for norm, _ in kit.tracked(config.norms, on_keys):
            label = (f"{keys} keys", "norm of the logits", norm)
            found = {
                BOUND: entropy_bound(norm, keys),
                FOUND: least_entropy_found(norm, keys, config.seed),
                ATTAINED: attaining_layer(norm, keys),
            }
            for variant, value in found.items():
                yield label[0], variant, label[1], norm, 0, _METRIC, value
            yield label[0], FOUND, label[1], norm, 0, _LEVELS, float(best_level(norm, keys))


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


def _layers(config: Config, on_step: kit.OnStep) -> Iterator[Row]:
    """Entropies of random layers by row, and both bounds: from the weights, from the logits."""
    for tokens, on_tokens in kit.tracked(config.tokens, on_step):
        x = overlapping_tokens(tokens, tokens + 1, config.overlap, config.seed)
        for scale, _ in kit.tracked(config.scales, on_tokens):
            spec = config.spec(tokens, scale)
            label = (f"{tokens} tokens", "scale of the weights", scale)
            for draw in range(config.networks):
                network = Network.random(spec, seed=config.seed + draw, dtype=torch.float64)
                for variant, value in _entropies(network, x).items():
                    yield label[0], variant, label[1], scale, draw, _METRIC, value
            kernel = overlap_kernel(tokens, config.overlap)
            found = predict(spec, kernel=kernel, draws=config.draws, seed=config.seed)
            for draw, value in enumerate(found.values[_METRIC][1].flatten().tolist()):
                yield label[0], PREDICTED, label[1], scale, draw, _METRIC, value


def _entropies(network: Network, x: Tensor) -> dict[str, float]:
    """The smallest row's entropy, the mean, and the bounds on the smallest."""
    attention = cast(Block, network.blocks[0]).attention
    with torch.no_grad():
        product = attention.query.weight.T @ attention.key.weight * network.spec.score_scale
        logits = x @ product @ x.T
        seen = Visibility.of(network.spec.mask, len(x), None, x.device)
        pattern = attention.pattern(x.unsqueeze(0), seen)[0, 0]
        assert torch.allclose(pattern, logits.softmax(-1), atol=1e-9)
        by_row = entropies(logits)
        lowest = int(by_row.argmin())
        own = logits[lowest] - logits[lowest].mean()
        weights = torch.linalg.matrix_norm(product, 2) * torch.linalg.matrix_norm(x, 2) ** 2
    return {
        SMALLEST: float(by_row.min()),
        MEAN: float(by_row.mean()),
        WEIGHTS: entropy_bound(float(weights), len(x)),
        LOGITS: entropy_bound(float(own.norm()), len(x)),
    }


Values = Mapping[tuple[str, float], Mapping[str, list[float]]]
"""By panel and setting, the values of every variant."""


def judge(table: pl.DataFrame) -> tuple[kit.Judgement, kit.Judgement, tuple[str, ...]]:
    """Below the bound is false; attained is tight; a tenth of what is measured says something.

    The claim holds if no row of a random layer has less entropy than either bound, if descent finds
    nothing below the bound and comes within a thousandth of it, if one layer attains it, and if of
    all two-level logits those with one key above the others have the least entropy. Beyond it, at
    each size and scale the bound from the weights says something if it is a tenth or more of the
    smallest row's entropy in every network.
    """
    panels = _panels(table)
    worst = {key: each for key, each in panels.items() if FOUND in each}
    layers = {key: each for key, each in panels.items() if SMALLEST in each}
    own = {
        "random layers": all(_above(each, bound) for each in layers.values() for bound in _BOUNDS),
        "descent": all(each[FOUND][0] >= _floor(each[BOUND][0]) for each in worst.values()),
        "tightness": all(
            each[variant][0] <= each[BOUND][0] * (1 + _TIGHT)
            for each in worst.values()
            for variant in (FOUND, ATTAINED)
        ),
        "one key above": set(table.filter(metric=_LEVELS)["value"].to_list()) == {1.0},
    }
    says = {
        f"{size}, weights × {scale:g}": min(_shares(each, WEIGHTS)) >= _SAYS
        for (size, scale), each in layers.items()
    }
    return (
        kit.judged(ENTRY.domain, own),
        kit.judged(_BEYOND, says, _where(says)),
        (*(_sentence(size, layers) for size in dict.fromkeys(s for s, _ in layers)),
         _tightness(worst)),
    )  # fmt: skip


_BOUNDS = (WEIGHTS, LOGITS)


def _panels(table: pl.DataFrame) -> Values:
    found: dict[tuple[str, float], dict[str, list[float]]] = {}
    rows = table.filter(metric=_METRIC).select("model", "setting", "variant", "value")
    for model, setting, variant, value in rows.iter_rows():
        found.setdefault((model, setting), {}).setdefault(variant, []).append(value)
    return found


def _floor(bound: float) -> float:
    return bound * (1 - _ROUNDING) - _ROUNDING


def _above(each: Mapping[str, list[float]], bound: str) -> bool:
    pairs = zip(each[SMALLEST], each[bound], strict=True)
    return all(measured >= _floor(least) for measured, least in pairs)


def _shares(each: Mapping[str, list[float]], bound: str) -> list[float]:
    """The bound over the smallest row's entropy, network by network."""
    return [low / row if row else 1.0 for low, row in zip(each[bound], each[SMALLEST], strict=True)]


def _where(says: Mapping[str, bool]) -> str:
    held = [case for case, ok in says.items() if ok]
    if len(held) in (0, len(says)):
        return ""
    return (
        f"the size of the weights: it says something in {len(held)} of {len(says)} settings, "
        + ("; ".join(held))
    )


def _sentence(size: str, layers: Values) -> str:
    own = {scale: each for (one, scale), each in layers.items() if one == size}
    weights, logits = (
        ", ".join(f"{min(_shares(each, bound)):.0%}" for each in own.values()) for bound in _BOUNDS
    )
    off = max(Mean.of(each[MEAN]).errors_from(Mean.of(each[PREDICTED])) for each in own.values())
    scales = ", ".join(f"{scale:g}" for scale in own)
    return (
        f"{size}, weights × {scales}: of the smallest row's entropy the bound from the weights is "
        f"{weights}, and that from the row's own logits {logits}; mean entropies of networks and "
        f"predictions differ by {short(off, digits=2)} standard errors at most."
    )


def _tightness(worst: Values) -> str:
    over = max(each[FOUND][0] / each[BOUND][0] - 1 for each in worst.values())
    return (
        f"Descent over logits of a norm ends {short(over, digits=1)} of the bound above it, or "
        f"less, in {len(worst)} cases."
    )


def _key_figures(table: pl.DataFrame) -> dict[str, float]:
    panels = _panels(table).values()
    layers = [each for each in panels if SMALLEST in each]
    says = [min(_shares(each, WEIGHTS)) >= _SAYS for each in layers]
    return {
        "smallest entropy found over the bound, largest": max(
            each[FOUND][0] / each[BOUND][0] for each in panels if FOUND in each
        ),
        "settings of which the bound says something, share": sum(says) / len(says),
    }
