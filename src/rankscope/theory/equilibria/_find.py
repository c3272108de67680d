"""All the equilibria of a step that many random starts lead to, and where its iteration ends."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rankscope.errors import InputError, KindError
from rankscope.network import Block, Network
from rankscope.shapes import Hidden
from rankscope.streams import stream
from rankscope.theory.equilibria._equilibrium import Equilibrium, certified, polished

_LONGEST_CYCLE = 8
_MOST_ENTRIES = 512  # the Jacobian has the square of it, for many samples


@dataclass(frozen=True)
class Equilibria:
    """Every equilibrium that was found, the one most starts end at first.

    ``settled`` of the ``starts`` came to rest under plain iteration, ``cycles`` are pairs (period,
    starts that ended on a cycle of it), ``diverged`` left the range of float64, and ``wandering``
    did none of these within the steps allowed: too slow, a longer cycle, or chaos.
    """

    found: tuple[Equilibrium, ...]
    starts: int
    settled: int
    cycles: tuple[tuple[int, int], ...]
    diverged: int
    wandering: int

    def __iter__(self) -> Iterator[Equilibrium]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that occur, smallest first."""
        return tuple(sorted({each.rank for each in self.found}))

    @property
    def stable(self) -> tuple[Equilibrium, ...]:
        """Those from which every small push dies out."""
        return tuple(each for each in self.found if each.stable)

    @property
    def collapsed(self) -> tuple[Equilibrium, ...]:
        """Those at which all tokens are equal; tokens at ±x have rank one and are not."""
        return tuple(each for each in self.found if each.collapsed)


def find_equilibria(
    network: Network,
    *,
    tokens: int,
    starts: int = 64,
    seed: int = 0,
    steps: int = 1000,
    tolerance: float = 1e-10,
) -> Equilibria:
    """The equilibria of one pass through a network on sequences of ``tokens`` tokens.

    >>> values = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))[None, None]
    >>> net = Network.from_matrices(0 * values, values, head_width=2, norm="sphere")
    >>> sorted(round(e.x[0, 0].item()) for e in find_equilibria(net, tokens=1).stable)
    [-1, 1]

    From each random start (normal tokens under the network's last norm) the step is repeated, which
    finds what attracts, and Newton's method is run, which also finds saddles. ``tolerance`` is the
    largest entry of ``F(X) − X`` that counts as rest; ends nearer than its square root are one.
    A search proves no absence: an equilibrium may be missed, and of a continuum as many members
    are returned as starts met it. Computed in float64 whatever the network's dtype.
    """
    _check(tokens, starts, steps, tolerance)
    if not isinstance(network, Network):
        raise KindError(f"network is a {type(network).__name__}, expected a rankscope Network.")
    if tokens * network.spec.width > _MOST_ENTRIES:
        raise InputError(
            f"{tokens} tokens of {network.spec.width} features have a Jacobian of "
            f"{(tokens * network.spec.width) ** 2:.2g} entries, more than is tried; "
            f"tokens × features may be {_MOST_ENTRIES} at most."
        )
    network = network.double()
    begin = _starts(network, tokens, starts, seed)
    end, period = _iterated(network, begin, steps, tolerance)
    resting = end[period == 1]
    tried = torch.cat([resting, polished(network, torch.cat([resting, begin]))])
    distinct = _distinct(network, tried, tolerance)
    found = [
        replace(certified(network, x), basin=share, basin_error=_binomial_error(share, starts))
        for x, share in zip(distinct, _shares(resting, distinct, starts), strict=True)
    ]
    count = Counter(period.tolist())
    return Equilibria(
        found=tuple(sorted(found, key=lambda each: (-(each.basin or 0.0), each.rank))),
        starts=starts,
        settled=count[1],
        cycles=tuple(sorted((p, times) for p, times in count.items() if p > 1)),
        diverged=count[-1],
        wandering=count[0],
    )


def _starts(network: Network, tokens: int, starts: int, seed: int) -> Hidden:
    """Normal tokens, taken into the range of the norm that the step ends with, if it does."""
    generator = stream(seed, "starts")
    shape = (starts, tokens, network.spec.width)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    last = network.blocks[-1]
    after = last.steps[-1].after if isinstance(last, Block) else nn.Identity()
    with torch.no_grad():
        begin: Hidden = after(x.to(next(network.parameters()).device))
    return begin


def _iterated(
    network: Network, x: Hidden, steps: int, tolerance: float
) -> tuple[Hidden, Int[Tensor, "batch"]]:
    """Repeat the step; the end of each sample and its period (1 rest, 0 none found, -1 overflow).

    A sample that has come back to where it was is left there; the others go on.
    """
    x = x.clone()
    period = torch.zeros(len(x), dtype=torch.long)
    past: list[Hidden] = []
    with torch.no_grad():
        for _ in range(steps):
            going = period == 0
            if not bool(going.any()):
                break
            past = [x.clone(), *past[: _LONGEST_CYCLE - 1]]
            x[going] = network(x[going])
            lost = going & ~torch.isfinite(x).all(-1).all(-1)
            period[lost] = -1
            for length, earlier in enumerate(past, start=1):
                back = (x - earlier).abs().flatten(1).amax(-1) <= tolerance
                period[(period == 0) & back] = length
    return x, period


def _distinct(
    network: Network, x: Hidden, tolerance: float
) -> list[Float[Tensor, "token feature"]]:
    """The samples that are at rest, the most exact one of each group of near ones."""
    with torch.no_grad():
        missed = (network(x) - x).abs().flatten(1).amax(-1)
    kept: list[Tensor] = []
    for sample in missed.argsort(stable=True).tolist():
        if not float(missed[sample]) <= tolerance:
            break
        if not any(bool(_near(x[sample], other, tolerance)) for other in kept):
            kept.append(x[sample])
    return kept


def _near(x: Tensor, other: Tensor, tolerance: float) -> Bool[Tensor, "*batch"]:
    """Slow iterations stop short of their limit, hence the root."""
    return (x - other).abs().flatten(-2).amax(-1) <= math.sqrt(tolerance)


def _shares(resting: Hidden, distinct: list[Tensor], starts: int) -> list[float]:
    """The part of all starts that came to rest at each equilibrium, each counted once."""
    if not distinct or not len(resting):
        return [0.0] * len(distinct)
    apart = torch.stack([(resting - x).abs().flatten(1).amax(-1) for x in distinct])
    nearest = Counter(apart.argmin(0).tolist())
    return [nearest[index] / starts for index in range(len(distinct))]


def _binomial_error(share: float, starts: int) -> float:
    return math.sqrt(share * (1 - share) / starts)


def _check(tokens: int, starts: int, steps: int, tolerance: float) -> None:
    for name, count in {"tokens": tokens, "starts": starts, "steps": steps}.items():
        if isinstance(count, bool) or not isinstance(count, int):
            raise KindError(f"{name}={count!r} is a {type(count).__name__}, expected an integer.")
        if count < 1:
            raise InputError(f"{name}={count} is out of range; expected 1 or more.")
    if not 0 < tolerance < 1e-2:
        raise InputError(f"tolerance={tolerance} is out of range; expected 0 to 0.01.")
