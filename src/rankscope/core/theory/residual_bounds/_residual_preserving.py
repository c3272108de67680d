"""Networks with skips whose tokens provably never collapse (Dong et al. 2021, claim 3.1).

The construction is derived here. Let ``X ↦ X + Σ_h P_h X W_h`` and let no ``W_h`` write to the
first k features: their columns in it are zero. Then those columns of X are the same in every layer,
whatever the attention matrices are, and for every center c

    ``‖X⁽ᴸ⁾ − 1cᵀ‖ ≥ ‖(X⁽ᴸ⁾ − 1cᵀ)_{1..k}‖ = ‖(X⁽⁰⁾ − 1cᵀ)_{1..k}‖``

in every norm that cannot grow when columns are left out: ``‖·‖₁``, ``‖·‖∞``, their composite,
Frobenius, spectral. So the residual of X⁽ᴸ⁾, at its mean or at its best center, is at no depth
below that of the first k features of the input; nor below that of the whole input if its other
features, those that are written to, are the same for all tokens. All ``W_QK``, and all of each
``W_h`` except those columns, are free.

With ``W_QK = 0`` more is true: all queries attend alike, each layer adds the same row to all
tokens, and the residual of all features, for every input, stays exactly what it was, whatever the
``W_h``.

A third family keeps the residual of *every* input with attention that depends on the tokens. Let
each head h look at one feature f and write to it alone: ``W_QK = κ e_f e_fᵀ`` and
``W_h = w e_f e_fᵀ`` with κ, w ≥ 0. Column f of X becomes ``t ↦ t + w m(t)``, entry by entry, where
``m(t) = Σ_j x_j e^{κ't x_j} / Σ_j e^{κ't x_j}`` is the derivative of a convex function, so that it
does not fall with t. Hence the column keeps its order and no two of its entries come closer: an
expansion. For every center c' of the new column there is a center c of the old one with
``|x_i − c| ≤ |x'_i − c'|`` for all i. (Let ``g = x' − x``, which does not fall along the order, let
a be the last entry with ``a' ≤ c'`` and b the next. Then ``c' − g(b) ≤ b`` and ``c' − g(a) ≥ a``,
so the interval from ``c' − g(b)`` to ``c' − g(a)`` meets that from a to b; any c in both will do.)
So no layer lowers the residual at the best center, in any norm that grows with the absolute
entries: ‖·‖₁, ‖·‖∞, composite, Frobenius. Nor at the medians, which stay those of the same tokens.

All families have continuous parameters: the "infinitely many parameterisations" of the claim. In
each, ``‖W_QK‖₁‖W_h‖`` may be as small as one likes.
"""

import math

import torch
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import whole
from rankscope.core.network import Network
from rankscope.errors import InputError
from rankscope.streams import stream

_MOST_NUMBERS = 10**9


@checked
def residual_preserving_network(
    layers: int,
    width: int,
    *,
    kept: int,
    heads: int = 1,
    strength: float = 1.0,
    values: float = 1.0,
    seed: int = 0,
) -> Network:
    """A random network with skips that never writes to its first ``kept`` features.

    >>> from rankscope.core.metrics import residual
    >>> net = residual_preserving_network(50, 4, kept=2)
    >>> x = torch.randn(1, 6, 4, dtype=torch.float64)
    >>> bool(residual(net(x)) >= residual(x[..., :2]))
    True

    ``strength`` multiplies the logits (0: uniform attention, and no residual changes at all),
    ``values`` what is written; the guarantee is independent of both and of the seed.
    """
    for name, count in {"layers": layers, "width": width, "heads": heads}.items():
        whole(name, count, least=1, most=2**31)
    if layers * heads * width**2 > _MOST_NUMBERS:
        raise InputError(
            f"{layers} layers of {heads} heads and {width} features have more than "
            f"{_MOST_NUMBERS:,} weights; ask for fewer."
        )
    whole("kept", kept, least=0, most=width)
    whole("seed", seed, least=0, most=2**63 - 1)
    for name, size in {"strength": strength, "values": values}.items():
        if not isinstance(size, int | float) or not math.isfinite(size):
            raise InputError(f"{name}={size} is out of range; expected a finite number.")
    query_key, written = (
        torch.stack([_draw_matrices(seed, layer, name, heads, width) for layer in range(layers)])
        for name in ("query-key", "value")
    )
    written[..., :kept] = 0.0
    return Network.from_matrices(
        strength * query_key, values * written, head_width=width, skip=True
    )


def expanding_network(
    layers: int, width: int, *, beta: float, strength: float = 1.0, seed: int = 0
) -> Network:
    """A random network with skips in which every head expands one feature, for every input.

    >>> from rankscope.core.metrics import residual
    >>> net = expanding_network(20, 4, beta=1e-3)
    >>> x = torch.randn(1, 6, 4, dtype=torch.float64)
    >>> bool(residual(net(x), center="median") >= residual(x, center="median"))
    True

    As many heads as features, d_qk = 1. ``strength`` is the largest ``‖W_QK‖₁``, ``beta`` the
    largest ``‖W_QK‖₁‖W_h‖₁,∞``; each head has its own, at least half of that.
    """
    for name, count in {"layers": layers, "width": width}.items():
        whole(name, count, least=1, most=2**31)
    for name, size in {"beta": beta, "strength": strength}.items():
        if not isinstance(size, int | float) or not 0 < size < math.inf:
            raise InputError(f"{name}={size} is out of range; expected a finite number above 0.")
    shape = (2, layers, width)
    drawn = torch.rand(shape, generator=stream(seed, "expanding"), dtype=torch.float64)
    parts = (0.5 + 0.5 * drawn) * torch.tensor([strength, beta / strength])[:, None, None]
    query_key, values = torch.diag_embed(torch.diag_embed(parts))
    return Network.from_matrices(query_key, values, head_width=1, skip=True)


keeping_network = residual_preserving_network
"""The former name of ``residual_preserving_network``; both stay."""


def _draw_matrices(seed: int, layer: int, name: str, heads: int, width: int) -> Tensor:
    # The stream keeps its first name, so that a seed keeps its network.
    generator = stream(seed, "keeping", layer, name)
    shape = (heads, width, width)
    return torch.randn(shape, generator=generator, dtype=torch.float64) / math.sqrt(width)
