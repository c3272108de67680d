"""``predict``: what a network does to its tokens at initialisation."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from rankscope.arguments import Count, Seed, checked
from rankscope.core.checks import finite, real, valid_mask
from rankscope.core.deep import deep_states
from rankscope.core.masks import Mask
from rankscope.core.network import Network, Spec, Visibility
from rankscope.core.prediction._draws import Coordinates, Course, compress, coordinates, from_kernel
from rankscope.core.prediction._ensemble import (
    PredictionTask,
    need_scaling,
    of_state,
    of_tokens,
    side_by_side,
)
from rankscope.core.prediction._gradients import measured_gradients
from rankscope.core.prediction._prediction import Prediction
from rankscope.core.tracing import trace
from rankscope.errors import InputError, ShapeError
from rankscope.streams import stream_seed

_NEGLIGIBLE = 1e-6  # relative size of entries of a Gram matrix that may be rounding


@checked
@torch.inference_mode(False)
@torch.no_grad()
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
    """Predict metrics of tokens at every layer of a random network, from their inner products.

    >>> import torch
    >>> from rankscope import Spec, predict
    >>> spec = Spec(6, 4, 64, norm_place="post", init="lecun")
    >>> band = predict(spec, torch.randn(10, 64), draws=8).band("relative_dispersion")
    >>> bool(band.mean[6] < band.mean[1])
    True

    ``x`` are tokens ``(token, feature)``, or a batch of them; alternatively ``kernel`` is their
    Gram matrix ``XXᵀ/width``. Each draw is a random network; samples of a batch are independent.
    Metrics by layer: ``relative_dispersion`` (``‖X − 1x̄ᵀ‖ / ‖X‖`` in the Frobenius norm) and its
    logarithm, which may fall below −1000, ``mean_cosine``, ``effective_rank``, ``token_norm`` and
    ``attention_entropy``; with ``gradients`` also the norms of the gradients of a random linear
    function of the last layer with respect to the state and weights of each layer. ``repeat`` runs
    the stack of layers that many times with the same weights.

    A band over draws is that of single networks at their width: normal and orthogonal weights are
    drawn exactly in distribution, but only in the few directions that the tokens use.
    ``infinite_width`` gives the infinite-width limit instead, with the same heads and hidden units.
    With shared layers, ``repeat`` or ``mlp_as="activation"``, which depends on the axes, whole
    networks are drawn. Draws are made on the device of ``x``, whole networks and gradients on the
    CPU; those of a GPU have other random numbers than those of a CPU.
    """
    spec.check_drawable()
    if infinite_width and gradients:
        raise InputError("gradients are predicted at finite width only; omit infinite_width.")
    whole_networks = spec.shared_layers or repeat > 1 or spec.mlp_as == "activation"
    if infinite_width and whole_networks:
        raise InputError(
            "shared layers, repeat > 1 and mlp_as='activation' are predicted at finite width only; "
            "omit infinite_width."
        )
    if kernel is not None and spec.mlp_as == "activation":
        raise InputError(
            "mlp_as='activation' acts on single features, which a kernel does not determine; pass "
            "the tokens x."
        )
    tokens, mask = _as_tokens(spec, x, kernel, token_mask)
    if whole_networks or gradients:
        tokens, mask = tokens.cpu(), None if mask is None else mask.cpu()
    samples = len(tokens)
    doubtful = 0
    if whole_networks:
        parts = [
            _whole_figures(spec, tokens, mask, network_seed(seed, draw), repeat, gradients)
            for draw in range(draws)
        ]
    else:
        tokens = compress(tokens)
        networks = [(draw, sample) for draw in range(draws) for sample in range(samples)]
        task = PredictionTask(spec, tokens, mask, seed, gradients=gradients, limit=infinite_width)
        results = side_by_side(task, networks)
        parts, doubtful = [course for course, _ in results], sum(doubts for _, doubts in results)
    values = {
        name: torch.cat([part[name] for part in parts], 1).unflatten(1, (draws, samples))
        for name in parts[0]
    }
    even = even_entropy(spec, tokens.shape[1], mask, repeat=repeat).expand(-1, samples)
    # Uniform entries are normal only in the limit of large width.
    width_error = 1 / spec.width if spec.init.kind == "xavier" else 0.0
    return Prediction(spec, seed, values, width_error, even, doubtful)


def _as_tokens(
    spec: Spec, x: Tensor | None, kernel: Tensor | None, token_mask: Tensor | None
) -> tuple[Coordinates, Tensor | None]:
    """The tokens in coordinates, by sample, and their mask."""
    if (x is None) == (kernel is None):
        raise InputError("expected either the tokens x or kernel, their Gram matrix, and not both.")
    values, name = (x, "x") if kernel is None else (kernel, "kernel")
    assert values is not None  # one of them is
    values = real(values, name=name, axes="(batch, token, feature)", least=2)
    here = values.device if values.is_cuda else torch.device("cpu")
    values = values.to(here, torch.float64)
    finite(values, name=name)
    shape = tuple(values.shape)
    if len(shape) not in (2, 3) or 0 in shape:
        raise ShapeError(f"{name} has shape {shape}, expected (token, ·) or (batch, token, ·).")
    values = values if values.ndim == 3 else values.unsqueeze(0)
    batch, count, last = values.shape
    expected = spec.width if kernel is None else count
    if last != expected:
        raise ShapeError(
            f"{name} has shape {tuple(values.shape)}, expected (..., {expected}) last."
        )
    if token_mask is not None:
        by_sample = token_mask if token_mask.ndim > 1 else token_mask.unsqueeze(0)
        token_mask = valid_mask(by_sample.to(values.device), (batch, count))
        values = torch.where(token_mask.unsqueeze(-1), values, 0.0)
    if kernel is None:
        return coordinates(values), token_mask
    if token_mask is not None:
        values = torch.where(token_mask.unsqueeze(-2), values, 0.0)
    return from_kernel(_gram(values, spec.width), spec.width), token_mask


def _gram(kernel: Tensor, width: int) -> Tensor:
    """Check that a Gram matrix is symmetric without negative eigenvalues."""
    size = kernel.abs().amax((-2, -1), keepdim=True).clamp(min=torch.finfo(kernel.dtype).tiny)
    kernel = kernel / size
    if not torch.allclose(kernel, kernel.mT, rtol=0.0, atol=_NEGLIGIBLE):
        raise InputError(
            "kernel is not symmetric; expected the Gram matrix XXᵀ/width of the tokens."
        )
    kernel = (kernel + kernel.mT) / 2
    values = torch.linalg.eigvalsh(kernel)
    if bool((values[:, :-width] > _NEGLIGIBLE).any()):
        raise InputError(
            f"kernel has more than {width} positive eigenvalues, but tokens of {width} features "
            f"span at most {width} directions."
        )
    if bool((values < -_NEGLIGIBLE).any()):
        least = float((values * size.squeeze(-1)).amin())
        raise InputError(
            f"kernel has an eigenvalue of {least:.3g}; a Gram matrix has no negative eigenvalues."
        )
    return kernel * size


def even_entropy(
    spec: Spec, tokens: int, token_mask: Tensor | None, *, repeat: int = 1
) -> Float[Tensor, "layer sample"]:
    """The entropy of uniform attention over the visible keys, by layer and sample.

    Without padding there is one sample for all; the input, layer 0, has no attention.
    """
    real = torch.ones(1, tokens, dtype=torch.bool) if token_mask is None else token_mask.cpu()
    by_mask: dict[Mask, Tensor] = {}
    for mask in set(spec.masks):
        allowed = Visibility.of(mask, tokens, real, real.device).allowed
        assert allowed is not None  # it is None only without a token mask
        seen = allowed.expand(len(real), 1, tokens, tokens).sum(-1).squeeze(1)
        logs = torch.where(real, seen.double().log(), 0.0)
        by_mask[mask] = logs.sum(-1) / real.sum(-1)
    rows = [by_mask[mask] for mask in spec.masks] * repeat
    return torch.stack([torch.full_like(rows[0], math.nan), *rows])


def _whole_figures(
    spec: Spec,
    tokens: Coordinates,
    token_mask: Tensor | None,
    seed: int,
    repeat: int,
    gradients: bool,
) -> Course:
    """All metrics of one random network that is drawn as a whole, by layer and sample.

    A shared matrix acts again on its own outputs, so layers are not independent draws, and an
    activation of the stream depends on the features themselves.
    """
    # The reflection that made the row of ones a coordinate is its own inverse.
    x = coordinates(pad(tokens, (0, spec.width - tokens.shape[-1])))
    network = Network.random(spec, seed=seed).repeat(repeat)
    states = [x.float(), *network.states(x.float(), token_mask)]
    if all(s.isfinite().all() and not need_scaling(s, token_mask).any() for s in states):
        figures = [of_tokens(state, token_mask) for state in states]
    else:  # plain floats cannot represent the states
        figures = [of_state(state) for _, state in deep_states(network, x, token_mask)]
    by_layer = {
        name: torch.stack([layer_figures[name] for layer_figures in figures]) for name in figures[0]
    }
    # The mean entropy of all heads, by layer and sample; the input has none.
    traced = trace(network.double(), x, metrics=["attention_entropy"], token_mask=token_mask)
    layer, sample = (torch.tensor(traced.columns[name]) for name in ("layer", "sample"))
    value = torch.tensor(traced.columns["value"], dtype=torch.float64)
    entropies = torch.zeros(network.spec.layers + 1, len(x), dtype=torch.float64)
    entropies[0] = math.nan
    entropies.index_put_((layer, sample), value / network.spec.heads, accumulate=True)
    by_layer["attention_entropy"] = entropies
    if gradients:
        by_layer |= measured_gradients(network, x, token_mask=token_mask, seed=seed)
    return by_layer


def network_seed(seed: int, draw: int) -> int:
    """The seed of the network of one draw."""
    return stream_seed(seed, "prediction", "network", draw)
