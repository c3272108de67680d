"""``predict``: what a network will do to its tokens, before it has weights."""

import math

import torch
from torch import Tensor

from rankscope.arguments import Count, Seed, checked
from rankscope.checks import finite, real, valid_mask
from rankscope.errors import InputError, ShapeError
from rankscope.network import Spec
from rankscope.prediction._coordinates import compress, coordinates, from_kernel
from rankscope.prediction._ensemble import Ensemble
from rankscope.prediction._measure import Figures
from rankscope.prediction._prediction import Prediction
from rankscope.prediction._streams import Streams
from rankscope.shapes import Hidden

_AT_ONCE = 2**26
"""Numbers of the largest tensor held at once, by which draws are taken together."""


@checked
@torch.no_grad()
def predict(
    spec: Spec,
    x: Tensor | None = None,
    *,
    kernel: Tensor | None = None,
    draws: Count = 16,
    seed: Seed = 0,
    token_mask: Tensor | None = None,
    infinite_width: bool = False,
) -> Prediction:
    """How tokens fare at every layer of a random network, from their inner products alone.

    >>> import torch
    >>> from rankscope import Spec, predict
    >>> found = predict(Spec(6, 4, 64, norm_place="post"), torch.randn(10, 64), draws=8)
    >>> band = found.band("relative_dispersion")
    >>> bool(band.mean[6] < band.mean[1])
    True

    ``x`` are tokens ``(token, feature)``, or a batch of them; instead of them ``kernel`` is their
    Gram matrix ``XXᵀ/width``. Each draw is a random network, each sample of a batch is taken by
    itself. By layer: ``relative_dispersion`` (the relative residual in the Frobenius norm) and its
    logarithm, which goes below 10^−1000 if the network does, ``mean_cosine``, ``effective_rank``,
    ``token_norm`` and ``attention_entropy``.

    A band over draws is that of single networks, at their own width: weights of independent normal
    entries and orthogonal ones are drawn exactly in law, only in the few directions the tokens
    have. ``infinite_width`` gives the limit that theory speaks of instead, at the same heads and
    hidden units.
    """
    tokens, mask = _tokens(spec, x, kernel, token_mask)
    samples = len(tokens)
    pairs = [(draw, sample) for draw in range(draws) for sample in range(samples)]
    groups = [
        pairs[at : at + _size(spec, tokens)] for at in range(0, len(pairs), _size(spec, tokens))
    ]
    parts = []
    for group in groups:
        index = torch.tensor([sample for _, sample in group])
        few = None if mask is None else mask[index]
        parts.append(_run(spec, tokens[index], few, Streams.of(seed, group), infinite_width))
    values = {
        name: torch.cat([part[name] for part in parts], 1).unflatten(1, (draws, samples))
        for name in parts[0]
    }
    return Prediction(spec, seed, values, width_error(spec))


def _run(
    spec: Spec, x: Hidden, token_mask: Tensor | None, streams: Streams, limit: bool
) -> Figures:
    """Every figure by layer and network."""
    ensemble = Ensemble(spec, x, token_mask, streams, limit=limit)
    found = [ensemble.figures()]
    entropies = [torch.full_like(next(iter(found[0].values())), math.nan)]
    for layer in range(spec.layers):
        entropies.append(ensemble.advance(layer))
        found.append(ensemble.figures())
    by_layer = {name: torch.stack([each[name] for each in found]) for name in found[0]}
    return {**by_layer, "attention_entropy": torch.stack(entropies)}


def width_error(spec: Spec) -> float:
    """What is left of the width, in parts of a figure: uniform entries are normal in the limit."""
    return 1 / spec.width if spec.init.kind == "xavier" else 0.0


def _tokens(
    spec: Spec, x: Tensor | None, kernel: Tensor | None, token_mask: Tensor | None
) -> tuple[Hidden, Tensor | None]:
    """The tokens in coordinates, by sample, and their mask."""
    if (x is None) == (kernel is None):
        raise InputError("give the tokens x, or kernel=, their Gram matrix, and not both.")
    given, name = (x, "x") if kernel is None else (kernel, "kernel")
    assert given is not None  # one of them is
    given = finite_batch(given, name)
    batch, count, last = given.shape
    expected = spec.width if kernel is None else count
    if last != expected:
        raise ShapeError(f"{name} has shape {tuple(given.shape)}, expected (..., {expected}) last.")
    if token_mask is not None:
        token_mask = valid_mask(token_mask.reshape(-1, token_mask.shape[-1]), (batch, count))
        given = torch.where(token_mask.unsqueeze(-1), given, 0.0)
    if kernel is None:
        return compress(coordinates(given)), token_mask
    if token_mask is not None:
        given = torch.where(token_mask.unsqueeze(-2), given, 0.0)
    return compress(from_kernel(_gram(given), spec.width)), token_mask


def finite_batch(given: Tensor, name: str) -> Tensor:
    """One sample or a batch of them, in float64."""
    given = real(given, name=name, axes="(batch, token, feature)", least=2).double()
    finite(given, name=name)
    if given.ndim not in (2, 3) or 0 in given.shape:
        raise ShapeError(
            f"{name} has shape {tuple(given.shape)}, expected (token, feature), or (batch, token, feature)."
        )
    return given if given.ndim == 3 else given.unsqueeze(0)


def _gram(kernel: Tensor) -> Tensor:
    """A Gram matrix, which is symmetric and has no negative eigenvalue, or an error."""
    size = kernel.abs().amax()
    if not torch.allclose(kernel, kernel.mT, rtol=0.0, atol=1e-6 * float(size)):
        raise InputError("kernel is not symmetric; it is the Gram matrix XXᵀ/width of the tokens.")
    kernel = (kernel + kernel.mT) / 2
    least = float(torch.linalg.eigvalsh(kernel).amin())
    if least < -1e-6 * float(size):
        raise InputError(
            f"kernel has an eigenvalue of {least:.3g}; a Gram matrix has none below zero."
        )
    return kernel


def _size(spec: Spec, tokens: Hidden) -> int:
    """How many networks are run at once."""
    count = tokens.shape[1]
    widest = max(spec.mlp_width, spec.heads * spec.head_width, spec.heads * count, 2 * count)
    return max(1, _AT_ONCE // ((count + 1) * widest))
