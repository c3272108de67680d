"""Networks with skips that provably keep their tokens apart (D, claim 3.1).

Derived. Let ``X ↦ X + Σ_h P_h X W_h`` and let no ``W_h`` write to the first k features: their
columns in it are zero. Then those columns of X are the same in every layer, whatever the attention
does with all features, and for every center c

    ``‖X⁽ᴸ⁾ − 1cᵀ‖ ≥ ‖(X⁽ᴸ⁾ − 1cᵀ)_{1..k}‖ = ‖(X⁽⁰⁾ − 1cᵀ)_{1..k}‖``

in each norm that cannot grow when columns are left out: ``‖·‖₁``, ``‖·‖∞``, their composite,
Frobenius, spectral. So the residual of X⁽ᴸ⁾, at its mean or at its best center, is never below that
of the k kept features of the input, at any depth; and not below that of the whole input if its
other features agree over the tokens (room to write in). All ``W_QK``, and all of each ``W_h`` but
those columns, are free.

With ``W_QK = 0`` more holds: all queries attend alike, the skip adds one row to all tokens, and the
residual of all features, for every input, stays exactly what it was, whatever the ``W_h`` are.

Both families have continuous parameters: that is D's "infinitely many parameterisations".
"""

import math

import torch
from torch import Tensor

from rankscope.errors import InputError
from rankscope.network import Network
from rankscope.streams import stream


def keeping_network(
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

    >>> net = keeping_network(50, 4, kept=2)
    >>> x = torch.randn(1, 6, 4, dtype=torch.float64)
    >>> bool(residual(net(x)) >= residual(x[..., :2]))
    True

    ``strength`` multiplies the logits (0: uniform attention, and no residual changes at all),
    ``values`` what is written; every choice of both, and every seed, keeps the residual.
    """
    for name, count in {"layers": layers, "width": width, "heads": heads}.items():
        _between(name, count, 1, 2**31)
    _between("kept", kept, 0, width)
    _between("seed", seed, 0, 2**63 - 1)
    for name, size in {"strength": strength, "values": values}.items():
        if not isinstance(size, int | float) or not math.isfinite(size):
            raise InputError(f"{name}={size} is out of range; expected a finite number.")
    query_key, written = (
        torch.stack([_drawn(seed, layer, name, heads, width) for layer in range(layers)])
        for name in ("query-key", "value")
    )
    written[..., :kept] = 0.0
    return Network.from_matrices(
        strength * query_key, values * written, head_width=width, skip=True
    )


def _drawn(seed: int, layer: int, name: str, heads: int, width: int) -> Tensor:
    generator = stream(seed, "keeping", layer, name)
    shape = (heads, width, width)
    return torch.randn(shape, generator=generator, dtype=torch.float64) / math.sqrt(width)


def _between(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InputError(
            f"{name}={value!r} is out of range; expected a whole number, {low} to {high}."
        )
