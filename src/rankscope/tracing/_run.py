"""``trace``: one forward pass, measured layer by layer while it runs."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from rankscope.batches import batches
from rankscope.checks import valid_mask
from rankscope.errors import InputError, KindError
from rankscope.network import Network
from rankscope.tracing._blocks import Named, find_blocks
from rankscope.tracing._measures import DEFAULT_METRICS, Metrics, choose_measures
from rankscope.tracing._recorder import Recorder
from rankscope.tracing._trace import Provenance, Trace

Layout = Literal["batch token feature", "token batch feature"]


def trace(
    model: nn.Module,
    inputs: Tensor | Mapping[str, Any] | Sequence[Any],
    *,
    metrics: Metrics = DEFAULT_METRICS,
    token_mask: Tensor | None = None,
    measured: Tensor | None = None,
    blocks: Named | None = None,
    layout: Layout | None = None,
) -> Trace:
    """Run a model once and measure every layer's hidden states while it runs.

    >>> import torch
    >>> from rankscope import Network, Spec, trace
    >>> net = Network.random(Spec(2, 2, 8), seed=0)
    >>> trace(net, torch.randn(1, 5, 8)).table.columns
    ['layer', 'sample', 'metric', 'value']

    ``model`` is a ``Network`` or any module with a stack of blocks, which is found, or named with
    ``blocks`` (``"encoder.layers"``, or the modules). ``inputs`` goes to the model as it is: a
    tensor, keyword arguments in a mapping, or positional ones in a sequence. ``token_mask`` says
    which tokens are not padding; without it an ``attention_mask`` (or PyTorch's
    ``src_key_padding_mask``) among the inputs is used.
    ``measured`` says which of them count in the metrics of hidden states (default: all), so that
    CLS and the like can be left out of the figures while the model still sees them.
    ``metrics`` are names from ``MEASURES`` or ``{name: function(x, token_mask=...)}``. Attention
    metrics need a ``Network``. Layer 0 is the input of the first block.
    The model runs in evaluation mode and without gradients and is left as it was found.
    """
    if not isinstance(model, nn.Module):
        raise KindError(f"model is a {type(model).__name__}, expected a torch.nn.Module.")
    if layout is not None and layout not in get_args(Layout):
        raise InputError(f"layout={layout!r} is unknown; choose {' or '.join(get_args(Layout))}.")
    measures = choose_measures(metrics)
    if measured is not None and all(each.of == "attention" for each in measures):
        raise InputError(
            "measured is for metrics of hidden states, and none was asked for: those of attention "
            "matrices are about all tokens; leave it out."
        )
    stack = find_blocks(model, blocks)
    args, kwargs = _arguments(inputs)
    if isinstance(model, Network):
        args, kwargs, token_mask = _for_network(model, args, kwargs, token_mask)
    elif token_mask is None:
        given = _by_name(model, args, kwargs)
        token_mask = _mask_among(given, decoder=_is_decoder(model, stack))
    if token_mask is not None:
        token_mask = valid_mask(token_mask, getattr(token_mask, "shape", ()))
    if measured is not None:
        measured = valid_mask(measured, getattr(measured, "shape", ()), name="measured")
    recorder = Recorder(
        measures, token_mask, measured=measured, token_first=_token_first(model, stack, layout)
    )
    with torch.no_grad(), evaluating(model), recorder.watching(stack):
        model(*args, **kwargs)
    return Trace(recorder.columns(), Provenance.of(model))


def trace_in_batches(
    model: nn.Module,
    x: Tensor,
    *,
    batch_size: int,
    metrics: Metrics = DEFAULT_METRICS,
    token_mask: Tensor | None = None,
    measured: Tensor | None = None,
    on_batch: Callable[[], None] | None = None,
) -> Trace:
    """``trace`` for more samples than fit at once; ``on_batch`` is called after each batch."""
    parts: list[Trace] = []
    for batch in batches(x, token_mask, measured, size=batch_size):
        _, some, mask, counted = batch
        parts.append(trace(model, some, metrics=metrics, token_mask=mask, measured=counted))
        if on_batch is not None:
            on_batch()
    return Trace.joined(parts)


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Sequence) and not isinstance(inputs, str):
        return tuple(inputs), {}
    raise KindError(
        f"inputs is a {type(inputs).__name__}, expected a tensor, a mapping of keyword arguments "
        "or a sequence of positional ones; turn text into token ids first."
    )


def _for_network(
    model: Network, args: tuple[Any, ...], kwargs: dict[str, Any], token_mask: Tensor | None
) -> tuple[tuple[Any, ...], dict[str, Any], Tensor | None]:
    """A network's own token mask, wherever it was given, counts for the metrics too."""
    try:
        given = dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise InputError(f"a network takes x and token_mask: {error}.") from None
    token_mask = given.get("token_mask") if token_mask is None else token_mask
    return (), {**given, "token_mask": token_mask}, token_mask


def _by_name(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """A model's arguments by the names it gives them, as far as they can be known."""
    inner = getattr(model, "module", model)  # DataParallel and the like take anything
    try:
        return dict(inspect.signature(inner.forward).bind_partial(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        return kwargs


def _mask_among(kwargs: dict[str, Any], *, decoder: bool) -> Tensor | None:
    """The mask among a model's inputs that speaks of the tokens these blocks see."""
    own = kwargs.get("token_mask")
    if isinstance(own, Tensor) and own.dtype == torch.bool:
        return own
    given = kwargs.get("decoder_attention_mask" if decoder else "attention_mask")
    if isinstance(given, Tensor) and given.ndim == 2:
        return given.bool()
    padding = kwargs.get("tgt_key_padding_mask" if decoder else "src_key_padding_mask")
    if isinstance(padding, Tensor) and padding.dtype == torch.bool:
        return ~padding  # PyTorch's own modules mark the padding, not the tokens
    return None


def _is_decoder(model: nn.Module, stack: Sequence[nn.Module]) -> bool:
    """Whether the blocks are the decoder of a model that has an encoder as well."""
    paths = {module: name.split(".") for name, module in model.named_modules()}
    parts = {part for path in paths.values() for part in path}
    return "encoder" in parts and "decoder" in paths.get(stack[0], [])


def _token_first(model: nn.Module, stack: Sequence[nn.Module], layout: Layout | None) -> bool:
    """Whether tokens come before the batch: in XLNet, and where PyTorch's own attention says so."""
    if layout is not None:
        return layout == "token batch feature"
    if getattr(getattr(model, "config", None), "model_type", None) == "xlnet":
        return True
    inside = (m for block in stack for m in block.modules())
    return any(isinstance(m, nn.MultiheadAttention) and not m.batch_first for m in inside)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards each module is back in the mode it was in."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
