"""The equations of a block in mpmath's numbers: norms, MLP, attention and its scores.

Weights are float64 numbers taken as exact; every map takes and gives lists of ``mpf``, at the
precision in force when it is called. The oracle runs these over layers and samples.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from mpmath import mp, mpf
from torch import Tensor, nn

from rankscope.network import MLP, Attention, Block, Scores, Spec, Sphere
from rankscope.network.linear import Projection
from rankscope.network.mlp import Passing
from rankscope.network.positions import BucketedBias, NormedHeads, Rotary, SinusoidKeys

Vector = list[mpf]
Rows = list[Vector]  # one vector per token
RowMap = Callable[[Rows], Rows]


@dataclass(frozen=True)
class Scene:
    """Which tokens of one sample are real, and what each of them may see."""

    real: list[int]
    keys: list[list[int]]  # of each real token: which real tokens it attends to
    positions: Tensor  # as the network's sight holds them: (rows, token), padding included
    row: int  # of this sample there


def block_map(block: Block, spec: Spec) -> Callable[[Rows, Scene], Rows]:
    """``x ↦ after(α x + Σ inside(part(before(x))))``, read off the spec, not off the steps."""
    norms = {name: _norm(norm) for name, norm in block.norms.items()}
    attend = _attention(block.attention)
    mlp = None if block.mlp is None else _mlp(block.mlp)
    before, inside, after = (
        spec.norm_place in places for places in (("pre", "both"), ("both",), ("post",))
    )

    def branch(name: str, part: RowMap, x: Rows) -> Rows:
        x = part(_if(before, norms, name)(x))
        return _if(inside, norms, f"{name}_inside")(x)

    def run(x: Rows, scene: Scene) -> Rows:
        attended = branch("attention", lambda h: attend(h, scene), x)
        x, skipped = _sum(attended, x, spec.skips[0]), x
        if spec.parallel:
            if mlp is not None:
                x = _sum(x, branch("mlp", mlp, skipped), 1.0)
            return _if(after, norms, "attention")(x)
        x = _if(after, norms, "attention")(x)
        if mlp is not None:
            x = _if(after, norms, "mlp")(_sum(branch("mlp", mlp, x), x, spec.skips[1]))
        return x

    return run


def _if(here: bool, norms: dict[str, RowMap], name: str) -> RowMap:
    return norms[name] if here and name in norms else _same


def _same(x: Rows) -> Rows:
    return x


def _sum(x: Rows, y: Rows, scale: float) -> Rows:
    """``x + scale · y``."""
    by = mpf(scale)
    return [[a + by * b for a, b in zip(p, q, strict=True)] for p, q in zip(x, y, strict=True)]


def exact(numbers: Tensor) -> list:
    """A tensor as nested lists of mpf; float64 fits into every precision used here."""
    if numbers.ndim > 1:
        return [exact(part) for part in numbers]
    return [mpf(v) for v in numbers.detach().double().tolist()]


def _linear(projection: Projection) -> RowMap:
    """``x ↦ x Wᵀ + b``, row by row."""
    weight = exact(projection.weight)
    bias = [mpf(0)] * len(weight) if projection.bias is None else exact(projection.bias)
    return lambda rows: [
        [mp.fdot(w, x) + b for w, b in zip(weight, bias, strict=True)] for x in rows
    ]


def _norm(norm: nn.Module) -> RowMap:
    """LayerNorm ``g (x − x̄)/√(var + ε) + b``, RMSNorm ``g x/√(x²‾ + ε)``, or ``x/‖x‖₂``."""
    if isinstance(norm, nn.Identity):
        return _same
    if isinstance(norm, Sphere):
        return lambda rows: [_over(x, mp.sqrt(mp.fdot(x, x))) if any(x) else x for x in rows]
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        raise NotImplementedError(f"the oracle has no equation for {type(norm).__name__}.")
    (width,) = norm.normalized_shape
    centered = isinstance(norm, nn.LayerNorm)
    eps = mpf(torch.finfo(torch.float64).eps if norm.eps is None else norm.eps)
    gain = [mpf(1)] * width if norm.weight is None else exact(norm.weight)
    shift = getattr(norm, "bias", None)
    bias = [mpf(0)] * width if shift is None else exact(shift)

    def one(x: Vector) -> Vector:
        mean = mp.fsum(x) / width if centered else mpf(0)
        x = [v - mean for v in x]
        scaled = _over(x, mp.sqrt(mp.fdot(x, x) / width + eps))
        return [g * v + b for g, v, b in zip(gain, scaled, bias, strict=True)]

    return lambda rows: [one(x) for x in rows]


def _over(x: Vector, by: mpf) -> Vector:
    return [v / by for v in x]


def _gelu_tanh(z: mpf) -> mpf:
    """``½z(1 + tanh u)``, as ``z/(1 + e^{−2u})``; 0.044715 is the float64 number, as a weight."""
    u = mp.sqrt(2 / mp.pi) * (z + mpf(0.044715) * z**3)
    return z / (1 + mp.exp(-2 * u))


PHI: dict[str, Callable[[mpf], mpf]] = {
    "relu": lambda z: z if z > 0 else mpf(0),
    "gelu": lambda z: z * mp.erfc(-z / mp.sqrt(2)) / 2,  # ½z(1 + erf(z/√2)), no cancellation
    "gelu_tanh": _gelu_tanh,
    "silu": lambda z: z / (1 + mp.exp(-z)),
}


def _mlp(mlp: MLP | Passing) -> RowMap:
    """``W₂ φ(W₁ h + b₁) + b₂``, gated ``W₂ (φ(W_g h + b_g) ∘ (W₁ h + b₁)) + b₂``, or h."""
    if isinstance(mlp, Passing):
        return _same
    phi, up, down = PHI[mlp.activation], _linear(mlp.up), _linear(mlp.down)
    if mlp.gate is None:
        return lambda rows: down([[phi(z) for z in x] for x in up(rows)])
    gate = _linear(mlp.gate)
    return lambda rows: down(
        [
            [phi(g) * z for g, z in zip(gates, x, strict=True)]
            for gates, x in zip(gate(rows), up(rows), strict=True)
        ]
    )


def _attention(attention: Attention) -> Callable[[Rows, Scene], Rows]:
    """``Σ_h P_h (X W_V,h + 1b_V,hᵀ) W_O,h + 1b_Oᵀ``; silent heads contribute nothing."""
    query, key, value, output = map(
        _linear, (attention.query, attention.key, attention.value, attention.output)
    )
    heads, group = attention.heads, attention.heads // attention.kv_heads

    def run(x: Rows, scene: Scene) -> Rows:
        queries = _split(query(x), heads)
        keys, values = (_split(f(x), attention.kv_heads) for f in (key, value))
        keys, values = ([part[h // group] for h in range(heads)] for part in (keys, values))
        logits = _logits(attention.scores, queries, keys, mpf(attention.scale), scene)
        mixed: Rows = [[] for _ in x]
        for h in range(heads):
            columns = list(zip(*values[h], strict=True))
            for i, seen in enumerate(scene.keys):
                if h in attention.removed:
                    mixed[i] += [mpf(0)] * len(columns)
                    continue
                weights = [mp.exp(logits[h][i][j]) for j in seen]
                total = mp.fsum(weights)
                mixed[i] += [mp.fdot(weights, [c[j] for j in seen]) / total for c in columns]
        return output(mixed)

    return run


def _split(rows: Rows, heads: int) -> list[Rows]:
    size = len(rows[0]) // heads
    return [[x[h * size : (h + 1) * size] for x in rows] for h in range(heads)]


def _logits(
    scores: Scores, queries: list[Rows], keys: list[Rows], scale: mpf, scene: Scene
) -> list[Rows]:
    """``[head][query][key]``, before masking."""
    if type(scores) is NormedHeads:
        queries = [_norm(scores.query_norm)(q) for q in queries]
        keys = [_norm(scores.key_norm)(k) for k in keys]
        return _logits(scores.then, queries, keys, scale, scene)
    if type(scores) is Rotary:
        cos, sin = _turns(scores, scene)
        queries, keys = ([_turned(x, cos, sin) for x in part] for part in (queries, keys))
        return _products(queries, keys, scale)
    if type(scores) is BucketedBias:
        position = scene.positions[scene.row : scene.row + 1, scene.real]
        buckets = scores._bucket(position[:, None, :] - position[:, :, None])[0].tolist()
        table = exact(scores.table.weight)
        added = [[[table[b][h] for b in row] for row in buckets] for h in range(len(queries))]
        return [
            _sum(p, b, 1.0) for p, b in zip(_products(queries, keys, scale), added, strict=True)
        ]
    if type(scores) is SinusoidKeys:
        content = [_shifted(q, u) for q, u in zip(queries, exact(scores.content_bias), strict=True)]
        asking = [_shifted(q, v) for q, v in zip(queries, exact(scores.position_bias), strict=True)]
        added = _distance_logits(scores, asking, scene)
        return [
            _sum(p, b, 1.0) for p, b in zip(_products(content, keys, scale), added, strict=True)
        ]
    if type(scores) is Scores:
        return _products(queries, keys, scale)
    raise NotImplementedError(f"the oracle has no equation for scores {type(scores).__name__}.")


def _products(queries: list[Rows], keys: list[Rows], scale: mpf) -> list[Rows]:
    return [
        [[scale * mp.fdot(q, k) for k in key] for q in query]
        for query, key in zip(queries, keys, strict=True)
    ]


def _shifted(rows: Rows, by: Vector) -> Rows:
    return [[a + b for a, b in zip(x, by, strict=True)] for x in rows]


def _turns(scores: Rotary, scene: Scene) -> tuple[Rows, Rows]:
    """Cosine and sine of each pair's angle at each token: float32 numbers, as the network's."""
    angles = scene.positions[:, None, :, None].float() * scores.frequencies
    angles = torch.cat((angles, angles), dim=-1)  # the same shape, hence the same rounding
    cos, sin = angles.cos() * scores.scaling, angles.sin() * scores.scaling
    pairs = len(scores.frequencies)
    here = scene.row, 0, scene.real, slice(0, pairs)
    return exact(cos[here]), exact(sin[here])


def _turned(rows: Rows, cos: Rows, sin: Rows) -> Rows:
    """Coordinates m and m + pairs turn by the m-th angle; those past the pairs stay."""
    turned = []
    for x, c, s in zip(rows, cos, sin, strict=True):
        pairs = len(c)
        a, b, still = x[:pairs], x[pairs : 2 * pairs], x[2 * pairs :]
        first = [a[m] * c[m] - b[m] * s[m] for m in range(pairs)]
        second = [a[m] * s[m] + b[m] * c[m] for m in range(pairs)]
        turned.append(first + second + still)
    return turned


def _distance_logits(scores: SinusoidKeys, asking: list[Rows], scene: Scene) -> list[Rows]:
    """``scale · (q_i + v)·R s(i−j)`` with the network's own float32 sinusoids."""
    positions = scene.positions[scene.row].tolist()
    reach = len(positions)
    sinusoids = scores._sinusoids(torch.arange(-reach, reach + 1))
    keys = _split(_linear(scores.project)(exact(sinusoids)), len(asking))
    place = [positions[t] for t in scene.real]
    scale = mpf(scores.scale)
    return [
        [[scale * mp.fdot(a, key[place[i] - p + reach]) for p in place] for i, a in enumerate(rows)]
        for rows, key in zip(asking, keys, strict=True)
    ]
