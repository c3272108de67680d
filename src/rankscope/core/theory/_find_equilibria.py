"""The equilibria of a step that many random starts lead to, and where its iteration ends."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rankscope.arguments import Count, Range, Seed, checked
from rankscope.core.checks import finite, real
from rankscope.core.network import Block, Network
from rankscope.core.shapes import Hidden
from rankscope.core.theory._equilibrium import Equilibrium, EquilibriumTable, measure, refine
from rankscope.errors import InputError, ShapeError
from rankscope.numerals import short
from rankscope.streams import stream

_LONGEST_CYCLE = 8
_MOST_ENTRIES = 512  # the Jacobian has the square of it, for many samples


@checked
@dataclass(frozen=True, repr=False)
class Equilibria(EquilibriumTable):
    """Every equilibrium that was found, the one with the largest basin first.

    >>> import torch
    >>> from rankscope import Network, find_equilibria
    >>> values = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))[None, None]
    >>> net = Network.from_matrices(0 * values, values, head_width=2, norm="sphere")
    >>> found = find_equilibria(net, tokens=1, starts=8)
    >>> found.starts, found.settled, len(found.stable)
    (8, 8, 2)

    Of the random ``starts``, ``settled`` converged under plain iteration, ``cycles`` are pairs
    (period, starts that ended on a cycle of that period), ``diverged`` left the range of float64,
    and ``wandering`` did none of these within the steps allowed: too slow, a longer cycle, or
    chaos.
    """

    equilibria: tuple[Equilibrium, ...]
    starts: int
    settled: int
    cycles: tuple[tuple[int, int], ...]
    diverged: int
    wandering: int

    def __iter__(self) -> Iterator[Equilibrium]:
        return iter(self.equilibria)

    def __len__(self) -> int:
        return len(self.equilibria)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that occur, smallest first."""
        return tuple(sorted({equilibrium.rank for equilibrium in self.equilibria}))

    @property
    def stable(self) -> tuple[Equilibrium, ...]:
        """Those at which every small perturbation dies out."""
        return tuple(equilibrium for equilibrium in self.equilibria if equilibrium.stable)

    @property
    def collapsed(self) -> tuple[Equilibrium, ...]:
        """Those at which all tokens are equal; tokens at ±x have rank one and are not."""
        return tuple(equilibrium for equilibrium in self.equilibria if equilibrium.collapsed)

    def __repr__(self) -> str:
        ranks = ", ".join(map(str, self.ranks)) or "none"
        cycling = sum(times for _, times in self.cycles)
        return (
            f"Equilibria({len(self.equilibria)} found, {len(self.stable)} stable, "
            f"{len(self.collapsed)} collapsed, ranks {ranks}; of {self.starts} random starts "
            f"{self.settled} settled, {cycling} cycled, {self.diverged} diverged, "
            f"{self.wandering} wandered)"
        )


@checked
def find_equilibria(
    network: Network,
    *,
    tokens: Count,
    starts: Count = 64,
    extra_starts: Tensor | None = None,
    seed: Seed = 0,
    steps: Count = 1000,
    tolerance: Annotated[float, Range(5e-324, 1e-2)] = 1e-10,
) -> Equilibria:
    """The equilibria of one pass through a network on sequences of ``tokens`` tokens.

    >>> values = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))[None, None]
    >>> net = Network.from_matrices(0 * values, values, head_width=2, norm="sphere")
    >>> sorted(round(e.x[0, 0].item()) for e in find_equilibria(net, tokens=1, starts=8).stable)
    [-1, 1]

    From each random start (normal tokens, mapped by the network's last norm) the step is repeated,
    which finds attractors, and Newton's method is run, which also finds saddles. ``extra_starts``,
    ``(token, feature)`` or ``(start, token, feature)``, are searched from in the same way, for
    equilibria that random starts may miss, such as a designed one; shares and counts are of the
    random starts alone. ``tolerance`` is the largest entry of ``F(X) − X`` that counts as
    converged; results closer together than its square root are one. A search proves no absence: an
    equilibrium may be missed, and of a continuum as many members are returned as starts led to it.
    Computed in float64 whatever the network's dtype.
    """
    if tokens * network.spec.width > _MOST_ENTRIES:
        raise InputError(
            f"{tokens} tokens of {network.spec.width} features have a Jacobian of "
            f"{short((tokens * network.spec.width) ** 2)} entries, too many for a search; "
            f"tokens × features may be {_MOST_ENTRIES} at most."
        )
    network = network.double()
    begin = _draw_starts(network, tokens, starts, seed)
    end, period = _iterate(network, begin, steps, tolerance)
    settled = end[period == 1]
    candidates = [settled, refine(network, torch.cat([settled, begin]))]
    if extra_starts is not None:
        extra = _check_extra(extra_starts, begin)
        ended, periods = _iterate(network, extra, steps, tolerance)
        extra = torch.cat([extra, ended[periods == 1]])
        candidates += [extra, refine(network, extra)]
    distinct = _select_distinct(network, torch.cat(candidates), tolerance)
    nearest: Counter[int] = Counter()
    if distinct and len(settled):  # each start counts once, where it settled
        apart = torch.stack([(settled - x).abs().flatten(1).amax(-1) for x in distinct])
        nearest.update(apart.argmin(0).tolist())
    shares = [nearest[index] / starts for index in range(len(distinct))]
    equilibria = [  # the error is that of a binomial share
        replace(measure(network, x), basin=p, basin_error=math.sqrt(p * (1 - p) / starts))
        for x, p in zip(distinct, shares, strict=True)
    ]
    equilibria.sort(key=lambda equilibrium: (-(equilibrium.basin or 0.0), equilibrium.rank))
    ends = Counter(period.tolist())
    return Equilibria(
        equilibria=tuple(equilibria),
        starts=starts,
        settled=ends[1],
        cycles=tuple(sorted((p, times) for p, times in ends.items() if p > 1)),
        diverged=ends[-1],
        wandering=ends[0],
    )


def _draw_starts(network: Network, tokens: int, starts: int, seed: int) -> Hidden:
    """Normal tokens, mapped into the range of the norm that the step ends with, if any."""
    shape = (starts, tokens, network.spec.width)
    x = torch.randn(shape, generator=stream(seed, "starts"), dtype=torch.float64)
    last = network.blocks[-1]
    after = last.steps[-1].after if isinstance(last, Block) else nn.Identity()
    with torch.no_grad():
        begin: Hidden = after(x.to(next(network.parameters()).device))
    return begin


def _check_extra(x: Tensor, like: Float[Tensor, "start token feature"]) -> Hidden:
    """Extra starts as ``(start, token, feature)`` in float64, of the shape of the random ones."""
    checked = real(x, name="extra_starts", axes="(start, token, feature)", least=2)
    finite(checked, name="extra_starts")
    batch = checked.detach().unsqueeze(0) if checked.ndim == 2 else checked.detach()
    if batch.ndim != 3 or not len(batch) or batch.shape[1:] != like.shape[1:]:
        tokens, features = like.shape[1:]
        raise ShapeError(
            f"extra_starts has shape {tuple(x.shape)}, expected ({tokens} tokens, {features} "
            "features) or a batch of those."
        )
    return batch.to(like)


def _iterate(
    network: Network, x: Hidden, steps: int, tolerance: float
) -> tuple[Hidden, Int[Tensor, "batch"]]:
    """Repeat the step: where each sample ends, and its period (0 none found, -1 overflow).

    Period 1 is convergence. A sample that returned to an earlier state stays there; the others
    continue.
    """
    x = x.clone()
    period = torch.zeros(len(x), dtype=torch.long)
    past: list[Hidden] = []
    with torch.no_grad():
        for _ in range(steps):
            active = period == 0
            if not bool(active.any()):
                break
            past = [x.clone(), *past[: _LONGEST_CYCLE - 1]]
            x[active] = network(x[active])
            period[active & ~torch.isfinite(x).all(-1).all(-1)] = -1
            for length, earlier in enumerate(past, start=1):
                back = (x - earlier).abs().flatten(1).amax(-1) <= tolerance
                period[(period == 0) & back] = length
    return x, period


def _select_distinct(
    network: Network, x: Hidden, tolerance: float
) -> list[Float[Tensor, "token feature"]]:
    """The samples that are equilibria, the most accurate one of each group of near ones."""
    with torch.no_grad():
        error = (network(x) - x).abs().flatten(1).amax(-1)
    selected: list[Tensor] = []
    for sample in error.argsort(stable=True).tolist():
        if not float(error[sample]) <= tolerance:
            break
        # Slow iterations stop short of their limit, hence the root.
        near = math.sqrt(tolerance)
        if not any(float((x[sample] - other).abs().max()) <= near for other in selected):
            selected.append(x[sample])
    return selected
