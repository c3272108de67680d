"""``predict``: what a network will do to its tokens, before it has weights."""

import torch
from torch import Tensor

from rankscope.arguments import Count, Seed, checked
from rankscope.core.network import Spec
from rankscope.core.prediction._coordinates import compress
from rankscope.core.prediction._even import even_entropy
from rankscope.core.prediction._inputs import as_tokens
from rankscope.core.prediction._prediction import Prediction
from rankscope.core.prediction._run import Task, side_by_side
from rankscope.core.prediction._tied import network_seed, tied_figures
from rankscope.errors import InputError


@checked
def predict(
    spec: Spec,
    x: Tensor | None = None,
    *,
    kernel: Tensor | None = None,
    draws: Count = 16,
    seed: Seed = 0,
    token_mask: Tensor | None = None,
    gradients: bool = False,
    repeat: Count = 1,
    infinite_width: bool = False,
) -> Prediction:
    """How tokens fare at every layer of a random network, from their inner products alone.

    >>> import torch
    >>> from rankscope import Spec, predict
    >>> spec = Spec(6, 4, 64, norm_place="post", init="lecun")
    >>> band = predict(spec, torch.randn(10, 64), draws=8).band("relative_dispersion")
    >>> bool(band.mean[6] < band.mean[1])
    True

    ``x`` are tokens ``(token, feature)``, or a batch of them; instead of them ``kernel`` is their
    Gram matrix ``XXᵀ/width``. Each draw is a random network, each sample of a batch is taken by
    itself. By layer: ``relative_dispersion`` (``‖X − 1x̄ᵀ‖ / ‖X‖`` in the Frobenius norm) and its
    logarithm, which goes below 10^−1000 if the network does, ``mean_cosine``, ``effective_rank``,
    ``token_norm`` and ``attention_entropy``; with ``gradients`` also the norms of the gradients of
    a random linear function of the last layer, with respect to each layer's state and weights.
    ``repeat`` runs the stack of layers so many times with the same weights.

    A band over draws is that of single networks, at their own width: weights of independent normal
    entries and orthogonal ones are drawn exactly in law, only in the few directions the tokens
    have. ``infinite_width`` gives the limit that theory speaks of instead, at the same heads and
    hidden units. Layers that share their weights have no law of their own: there, whole networks
    are drawn.
    """
    if infinite_width and gradients:
        raise InputError("gradients are told at the network's own width; leave out infinite_width.")
    if infinite_width and (spec.shared_layers or repeat > 1):
        raise InputError(
            "layers that share weights are drawn at their own width; leave out infinite_width."
        )
    with torch.inference_mode(False), torch.no_grad():
        return _predict(spec, x, kernel, draws, seed, token_mask, gradients, repeat, infinite_width)


def _predict(
    spec: Spec,
    x: Tensor | None,
    kernel: Tensor | None,
    draws: int,
    seed: int,
    token_mask: Tensor | None,
    gradients: bool,
    repeat: int,
    infinite_width: bool,
) -> Prediction:
    tokens, mask = as_tokens(spec, x, kernel, token_mask)
    samples = len(tokens)
    doubtful = 0
    if spec.shared_layers or repeat > 1:
        parts = [
            tied_figures(
                spec,
                tokens,
                mask,
                seed=network_seed(seed, draw),
                repeat=repeat,
                gradients=gradients,
            )
            for draw in range(draws)
        ]
    else:
        tokens = compress(tokens)
        networks = [(draw, sample) for draw in range(draws) for sample in range(samples)]
        task = Task(spec, tokens, mask, seed, gradients=gradients, limit=infinite_width)
        found = side_by_side(task, networks)
        parts, doubtful = [each.course for each in found], sum(each.doubtful for each in found)
    values = {
        name: torch.cat([part[name] for part in parts], 1).unflatten(1, (draws, samples))
        for name in parts[0]
    }
    even = even_entropy(spec, tokens.shape[1], mask, repeat=repeat).expand(-1, samples)
    return Prediction(spec, seed, values, width_error(spec), even, doubtful)


def width_error(spec: Spec) -> float:
    """What is left of the width, in parts of a figure: uniform entries are normal in the limit."""
    return 1 / spec.width if spec.init.kind == "xavier" else 0.0
