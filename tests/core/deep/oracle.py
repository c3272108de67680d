"""The network's equations in as many decimal digits as one likes, to judge scaled arithmetic by.

What it offers:

``plain_states(network, x, token_mask=None, digits=60)``
    the hidden states as a list of ``State``: the input first, then the output of each block.
    ``state.samples[sample][token][feature]`` is an ``mpf``, NaN at padding; ``state.tensor()`` is
    the nearest float64 tensor.
``log10_residual(state, token_mask=None, norm="composite", center="mean", *, relative=False)``
    log10 of ``‖X − 1cᵀ‖``, or of ``‖X − 1cᵀ‖ / ‖X‖``, as a float64 tensor ``(batch,)``; −inf for
    exactly zero. Raises ``TooFewDigitsError`` where too few digits are left to tell.
``log10_residuals(network, x, token_mask=None, norm=..., center=..., *, relative=False)``
    the same for every state, ``(layer + 1, batch)``: the digits are raised until two runs of
    different precision agree, so nobody has to guess how many are enough. Start here;
    ``settled(network, x, token_mask, measures)`` takes several ``Measure``s of one run.

Weights, inputs, ``eps``, skips and the scale of the logits are float64 numbers taken as exact;
so are the angles and sinusoids of positions, which the network computes in float32 first. All else
is written straight from the equations: no number is scaled, and precision alone keeps small
differences. Padding is left out of the computation altogether; only ``Visibility`` ever sees it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from mpmath import mp, mpf
from torch import Tensor

from rankscope.core.network import Network, Visibility

from .equations import block_map
from .rows import Rows, Scene, exact

_SPARE = 20  # digits a residual must have left above the rounding of the states

_SURELY = 900  # digits at which a residual of zero is believed: fewer may just not show it


@dataclass(frozen=True)
class State:
    """Hidden states of a batch: ``samples[sample][token][feature]``, NaN at padding."""

    samples: list[Rows]
    digits: int

    def tensor(self) -> Tensor:
        """The nearest float64 numbers, ``(batch, token, feature)``."""
        rows = [[[float(v) for v in row] for row in sample] for sample in self.samples]
        return torch.tensor(rows, dtype=torch.float64)


def plain_states(
    network: Network, x: Tensor, token_mask: Tensor | None = None, digits: int = 60
) -> list[State]:
    """Every hidden state of a float64 network, the input first, to about ``digits`` digits."""
    if x.dtype != torch.float64:
        raise TypeError(f"the input is {x.dtype}; the oracle takes float64: network.double().")
    x, token_mask = network.prepare(x, token_mask)
    batch, tokens, width = x.shape
    with mp.workdps(digits), torch.no_grad():
        masks = {
            mask: _scenes(
                Visibility.of(mask, tokens, token_mask, x.device), batch, tokens, token_mask
            )
            for mask in network.spec.masks
        }
        blocks = {id(block): block_map(block, network.spec) for block in network.blocks}
        scenes = masks[network.spec.masks[0]]
        now = [[exact(x[b, t]) for t in scene.real] for b, scene in enumerate(scenes)]
        states = [State(_padded(now, scenes, tokens, width), digits)]
        for mask, block in zip(network.spec.masks, network.blocks, strict=True):
            step = blocks[id(block)]
            now = [step(rows, scene) for rows, scene in zip(now, masks[mask], strict=True)]
            states.append(State(_padded(now, scenes, tokens, width), digits))
    return states


def _scenes(seen: Visibility, batch: int, tokens: int, token_mask: Tensor | None) -> list[Scene]:
    """Each sample's real tokens and, for each of them, the real tokens it attends to."""
    real = torch.ones(batch, tokens, dtype=torch.bool) if token_mask is None else token_mask
    allowed = torch.ones(1, 1, 1, 1, dtype=torch.bool) if seen.allowed is None else seen.allowed
    allowed = allowed[:, 0].expand(batch, tokens, tokens)
    scenes = []
    for b in range(batch):
        chosen = real[b].nonzero().flatten().tolist()
        keys = [row.nonzero().flatten().tolist() for row in allowed[b][chosen][:, chosen]]
        scenes.append(Scene(chosen, keys, seen.positions, b if len(seen.positions) > 1 else 0))
    return scenes


def _padded(samples: list[Rows], scenes: list[Scene], tokens: int, width: int) -> list[Rows]:
    """Real rows back in their places; NaN elsewhere, so that nobody uses padding by mistake."""
    full = []
    for rows, scene in zip(samples, scenes, strict=True):
        placed = dict(zip(scene.real, rows, strict=True))
        full.append([placed.get(token, [mp.nan] * width) for token in range(tokens)])
    return full


@dataclass(frozen=True)
class Measure:
    """One way to take a residual."""

    norm: str = "composite"
    center: str = "mean"
    relative: bool = False


def log10_residuals(
    network: Network,
    x: Tensor,
    token_mask: Tensor | None = None,
    norm: str = "composite",
    center: str = "mean",
    *,
    relative: bool = False,
    digits: int = 60,
    most: int = 4000,
) -> Tensor:
    """log10 residuals ``(layer + 1, batch)`` on which two precisions agree to 1e-17."""
    measure = Measure(norm, center, relative)
    return settled(network, x, token_mask, [measure], digits=digits, most=most)[measure]


def settled(
    network: Network,
    x: Tensor,
    token_mask: Tensor | None,
    measures: Sequence[Measure],
    *,
    digits: int = 60,
    most: int = 4000,
) -> dict[Measure, Tensor]:
    """The same for several measures of one run."""

    def run(digits: int) -> list[list[mpf]]:
        states = plain_states(network, x, token_mask, digits)
        return [_logarithms(s, token_mask, m) for m in measures for s in states]

    while digits <= most:
        try:
            low, high = run(digits), run(digits + 30)
        except TooFewDigitsError:
            digits *= 2
            continue
        zero = any(mp.isinf(v) for v in chain(*high))
        if (not zero or digits >= _SURELY) and all(map(agree, chain(*low), chain(*high))):
            found = torch.tensor([[float(v) for v in row] for row in high], dtype=torch.float64)
            each = found.unflatten(0, (len(measures), -1))
            return dict(zip(measures, each, strict=True))
        digits *= 2
    raise ArithmeticError(f"{most} digits do not settle the residuals; raise most, or they are 0.")


def agree(a: mpf, b: mpf) -> bool:
    """Equal to 1e-17, relative where large: closer than the float64 they will become."""
    if mp.isinf(a) or mp.isinf(b):
        return a == b
    return abs(a - b) <= mpf("1e-17") * max(1, abs(b))


def log10_residual(
    state: State,
    token_mask: Tensor | None = None,
    norm: str = "composite",
    center: str = "mean",
    *,
    relative: bool = False,
) -> Tensor:
    """log10 of ``‖X − 1cᵀ‖``, or of its ratio to ``‖X‖``, for each sample."""
    logarithms = _logarithms(state, token_mask, Measure(norm, center, relative))
    return torch.tensor([float(v) for v in logarithms], dtype=torch.float64)


class TooFewDigitsError(ArithmeticError):
    """The residual is within the rounding of the states."""


def _logarithms(state: State, token_mask: Tensor | None, measure: Measure) -> list[mpf]:
    norm = measure.norm
    with mp.workdps(state.digits):
        out = []
        for b, sample in enumerate(state.samples):
            rows = [x for t, x in enumerate(sample) if token_mask is None or token_mask[b, t]]
            if any(mp.isnan(v) for x in rows for v in x):
                raise ValueError("the tokens hold NaN; give the token_mask of the states.")
            rest = _centered(rows, measure.center)
            size, whole = matrix_norm(rest, norm), matrix_norm(rows, norm)
            if 0 < size < whole * mpf(10) ** (_SPARE - state.digits):
                raise TooFewDigitsError(
                    f"at {state.digits} digits the relative residual is {mp.nstr(size / whole, 3)},"
                    f" less than {_SPARE} digits above rounding; use more digits."
                )
            ratio = size / whole if measure.relative and size else size
            out.append(mp.log10(ratio) if ratio else -mp.inf)
        return out


def _centered(rows: Rows, center: str) -> Rows:
    """Rows less their mean or median, from differences: equal rows leave exactly nothing."""
    offsets = [[v - first for v, first in zip(x, rows[0], strict=True)] for x in rows]
    columns = [sorted(column) for column in zip(*offsets, strict=True)]
    count = len(rows)
    if center == "mean":
        centers = [mp.fsum(column) / count for column in columns]
    elif center == "median":
        centers = [(c[(count - 1) // 2] + c[count // 2]) / 2 for c in columns]
    else:
        raise ValueError(f"center={center!r} is unknown; choose mean or median.")
    return [[v - c for v, c in zip(x, centers, strict=True)] for x in offsets]


def matrix_norm(rows: Rows, norm: str) -> mpf:
    """Largest column sum (one), row sum (inf), the root of their product, or Frobenius."""
    one = max(mp.fsum(column, absolute=True) for column in zip(*rows, strict=True))
    inf = max(mp.fsum(row, absolute=True) for row in rows)
    square = mp.fsum((v for row in rows for v in row), squared=True)
    sizes = {"one": one, "inf": inf, "composite": mp.sqrt(one * inf), "fro": mp.sqrt(square)}
    if norm not in sizes:
        raise ValueError(f"norm={norm!r} is unknown; choose one of {', '.join(sizes)}.")
    return sizes[norm]
