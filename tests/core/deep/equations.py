"""The equations of a block in mpmath's numbers: its steps, MLP and attention.

The oracle runs these over layers and samples; rows.py has what acts on single rows, patterns.py the
attention weights.
"""

from collections.abc import Callable

from mpmath import mp, mpf

from rankscope.core.network import MLP, Attention, BareMLP, Block, Spec

from .patterns import attention_weights
from .rows import RowMap, Rows, Scene, by_head, linear, normed, plus, same


def block_map(block: Block, spec: Spec) -> Callable[[Rows, Scene], Rows]:
    """``x ↦ after(α x + Σ inside(part(before(x))))``, read off the spec, not off the steps."""
    norms = {name: normed(norm) for name, norm in block.norms.items()}
    attend = _attention(block.attention)
    mlp = None if block.mlp is None else _mlp(block.mlp)
    before, inside, after = (
        spec.norm_place in places for places in (("pre", "both"), ("both", "output"), ("post",))
    )

    def branch(name: str, part: RowMap, x: Rows) -> Rows:
        x = part(_if(before, norms, name)(x))
        return _if(inside, norms, f"{name}_inside")(x)

    def run(x: Rows, scene: Scene) -> Rows:
        attended = branch("attention", lambda h: attend(h, scene), x)
        x, skipped = plus(attended, x, spec.skips[0]), x
        if spec.parallel:
            if mlp is not None:
                x = plus(x, branch("mlp", mlp, skipped), 1.0)
            return _if(after, norms, "attention")(x)
        x = _if(after, norms, "attention")(x)
        if mlp is not None:
            x = _if(after, norms, "mlp")(plus(branch("mlp", mlp, x), x, spec.skips[1]))
        return x

    return run


def _if(here: bool, norms: dict[str, RowMap], name: str) -> RowMap:
    return norms[name] if here and name in norms else same


def _gelu_tanh(z: mpf) -> mpf:
    """``½z(1 + tanh u)``, as ``z/(1 + e^{−2u})``; 0.044715 is the float64 number, as a weight."""
    u = mp.sqrt(2 / mp.pi) * (z + mpf(0.044715) * z**3)
    return z / (1 + mp.exp(-2 * u))


PHI: dict[str, Callable[[mpf], mpf]] = {
    "relu": lambda z: z if z > 0 else mpf(0),
    "gelu": lambda z: z * mp.erfc(-z / mp.sqrt(2)) / 2,  # ½z(1 + erf(z/√2)), no cancellation
    "gelu_tanh": _gelu_tanh,
    "silu": lambda z: z / (1 + mp.exp(-z)),
    "relu2": lambda z: z * z if z > 0 else mpf(0),
    "quick_gelu": lambda z: z / (1 + mp.exp(mpf(-1.702) * z)),  # a float64 number, as above
}


def _mlp(mlp: MLP | BareMLP) -> RowMap:
    """``W₂ φ(W₁ h + b₁) + b₂``, gated ``W₂ (φ(W_g h + b_g) ∘ (W₁ h + b₁)) + b₂``, h or φ(h)."""
    if isinstance(mlp, BareMLP):
        if mlp.activation is None:
            return same
        return lambda rows: [[PHI[str(mlp.activation)](z) for z in x] for x in rows]
    if mlp.router is not None:
        raise NotImplementedError("the oracle has no equation for a router.")
    phi, up, down = PHI[mlp.activation], linear(mlp.up), linear(mlp.down)
    if mlp.gate is None:
        return lambda rows: down([[phi(z) for z in x] for x in up(rows)])
    gate = linear(mlp.gate)
    return lambda rows: down(
        [
            [phi(g) * z for g, z in zip(gates, x, strict=True)]
            for gates, x in zip(gate(rows), up(rows), strict=True)
        ]
    )


def _centred(weights: Rows, scene: Scene) -> Rows:
    """Less the same weight for every key a query sees."""
    return [
        [weight - (mpf(1) / len(keys) if at in keys else 0) for at, weight in enumerate(row)]
        for row, keys in zip(weights, scene.keys, strict=True)
    ]


def _attention(attention: Attention) -> Callable[[Rows, Scene], Rows]:
    """``Σ_h P_h (X W_V,h + 1b_V,hᵀ) W_O,h + 1b_Oᵀ``; silent heads contribute nothing."""
    if attention.gate is not None or attention.latent:
        raise NotImplementedError("the oracle has no equation for gates or latent projections.")
    query, key, value, output = map(
        linear, (attention.query, attention.key, attention.value, attention.output)
    )
    heads, group = attention.heads, attention.heads // attention.kv_heads

    def run(x: Rows, scene: Scene) -> Rows:
        queries = by_head(query(x), heads)
        keys, values = (by_head(f(x), attention.kv_heads) for f in (key, value))
        keys, values = ([part[h // group] for h in range(heads)] for part in (keys, values))
        weights = attention_weights(attention.scores, queries, keys, mpf(attention.scale), scene)
        if attention.centered:
            weights = [_centred(rows, scene) for rows in weights]
        mixed: Rows = [[] for _ in x]
        for h in range(heads):
            columns = list(zip(*values[h], strict=True))
            for out, row in zip(mixed, weights[h], strict=True):
                silent = h in attention.removed
                out += [mpf(0) if silent else mp.fdot(row, column) for column in columns]
        return output(mixed)

    return run
