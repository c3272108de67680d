"""``trace``: one forward pass, measured layer by layer while it runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

from rankscope.arguments import checked
from rankscope.core.batches import batches
from rankscope.core.network import Network
from rankscope.core.tracing._attention_interface import goes_through_interface
from rankscope.core.tracing._blocks import Named, Stack, find_stack
from rankscope.core.tracing._figures import SpectraBy
from rankscope.core.tracing._inputs import (
    Given,
    Place,
    given_to,
    ids_among,
    writes_to,
)
from rankscope.core.tracing._layout import Layout, LayoutChoice
from rankscope.core.tracing._masks import MaskReading, read_mask
from rankscope.core.tracing._measures import DEFAULT_METRICS, Measure, Metrics, choose_measures
from rankscope.core.tracing._memory import Memory, at_hand, forget, memorised, remembered
from rankscope.core.tracing._modes import evaluating_all, own_modes
from rankscope.core.tracing._outputs import OutputChoice
from rankscope.core.tracing._provenance import Provenance
from rankscope.core.tracing._recorder import Recorder
from rankscope.core.tracing._soundness import refuse_broken
from rankscope.core.tracing._tensors import Output
from rankscope.core.tracing._tokens import TokenChoice
from rankscope.core.tracing._trace import Trace
from rankscope.errors import InputError, KindError


@checked
def trace(
    model: nn.Module,
    inputs: Tensor | Mapping[str, Any] | Sequence[Any],
    *,
    metrics: Metrics = DEFAULT_METRICS,
    token_mask: Tensor | None = None,
    measured: Tensor | None = None,
    blocks: Named | None = None,
    layout: Layout | None = None,
    output: Output | None = None,
    spectra: SpectraBy = "auto",
) -> Trace:
    """Run a model once and measure every layer's hidden states while it runs.

    >>> import torch
    >>> from rankscope import Network, Spec, trace
    >>> net = Network.random(Spec(2, 2, 8), seed=0)
    >>> trace(net, torch.randn(1, 5, 8)).table.columns
    ['layer', 'sample', 'metric', 'value']

    ``model`` is a ``Network`` or any module with a stack of blocks, which is found, or named with
    ``blocks`` (``"encoder.layers"``, or the modules; one that runs twice may be named twice).
    ``inputs`` goes to the model as it is: a tensor, keyword arguments in a mapping, or positional
    ones in a sequence. ``token_mask`` says which tokens are not padding; without it an
    ``attention_mask`` (or PyTorch's ``src_key_padding_mask``) among the inputs is used.
    ``measured`` says which of them count in the metrics of hidden states (default: all), so that
    CLS and the like can be left out of the figures while the model still sees them.
    ``metrics`` are names from ``MEASURES`` or ``{name: function(x, token_mask=...)}``. Attention
    metrics need a ``Network``, or a model that goes through the attention interface of
    Transformers. ``spectra`` says whether effective rank, stable rank and participation ratio come
    from an ``exact`` decomposition or are ``estimated`` from products, with an ``error`` in the
    table; ``auto`` estimates on a GPU. Other spectral metrics are always exact. Layer 0 is the
    input of the first block.

    What is not told is decided from what can be seen, and the provenance says what and why: the
    stack, the mask, the ``layout`` (whether batch or tokens come first), and which tensor a block's
    ``output`` is (its number or key, or a function of the output). Where two readings are possible,
    an error names the option that settles it.
    No host waits for a device while the model runs, unless exact spectra, σ₂ or a function of one's
    own are asked for, and nothing is kept of a layer but its figures.
    The model runs in evaluation mode and without gradients and is left as it was found; only what
    this thread runs is recorded. On a GPU it is run again if it turns out, after it has run, that
    something beside its weights has changed since it was last traced.
    """
    measures = _checked(model, metrics, measured, layout, output, spectra)
    asked = _Asked(inputs, measures, token_mask, measured, blocks, layout, output, spectra)
    found = _with_what_is_known(model, asked)
    if found is None:
        found = _traced(model, asked, remembered(model))
    assert found is not None  # what was just made sure of is certain
    return found


class _Asked(NamedTuple):
    """The arguments of ``trace``, which says what they are."""

    inputs: Any
    measures: tuple[Measure, ...]
    token_mask: Tensor | None
    measured: Tensor | None
    blocks: Named | None
    layout: Layout | None
    output: Output | None
    spectra: SpectraBy


def _with_what_is_known(model: nn.Module, asked: _Asked) -> Trace | None:
    """A trace for which a model is only recognised while the device works; None if it has changed.

    What was decided about the model, as where its blocks are, is then to be decided anew, and the
    model to be run again.
    """
    memory = at_hand(model)
    if memory is None:
        return None
    writes = writes_to(asked.inputs)
    try:
        found = _traced(model, asked, memory, is_certain=False)
    except Exception:
        if memory.fits(model):
            raise
        found = None
    if found is not None:
        return found
    forget(model)
    if writes_to(asked.inputs) != writes:
        raise InputError(
            f"{type(model).__name__} has changed since it was last traced, which showed only once "
            "it had run, and it writes into its inputs; trace it again, with inputs as they were."
        )
    return None


def _traced(
    model: nn.Module, asked: _Asked, memory: Memory, *, is_certain: bool = True
) -> Trace | None:
    """A trace with what is remembered of a model; unless that is certain, None if it is wrong."""
    inputs, measures, token_mask, measured, blocks, layout, output, spectra = asked
    named = None if blocks is None else find_stack(model, blocks)
    stack = named or _found_stack(model, memory)
    given = given_to(model, inputs)
    first, ours = stack.blocks[0], isinstance(model, Network)
    place = memory.once(("place", id(first)), lambda: Place.of(model, first))
    kind = None if ours else place.model_type
    mask = _mask(given, token_mask, None if ours else place)
    ids = ids_among(given.by_name, decoder=not ours and place.is_decoder)
    heard = ("heard", tuple(map(id, stack.blocks)))
    recorder = Recorder(
        model,
        measures,
        stack.blocks,
        layout=LayoutChoice(model, stack.blocks, said=layout, model_type=kind, ids=ids),
        output=OutputChoice(output),
        tokens=TokenChoice(mask, measured, ids=ids, model_type=kind),
        spectra_by=spectra,
        all_heard=memory.once(heard, lambda: all(map(goes_through_interface, stack.blocks))),
    )
    known = (stack, given, measures, mask.mask, measured)
    origin = _origin(model, memory, *known)
    args, kwargs = given.args, given.kwargs
    if ours:
        kwargs = {**kwargs, "token_mask": mask.mask}
    drawn: dict[str, str] = {}
    with (
        torch.no_grad(),
        evaluating_all(memory.modules(), drawn),
        recorder.watching(),
    ):
        model(*args, **kwargs)
    if not is_certain and not memory.fits(model):
        return None
    memory.settle(model)
    columns = recorder.columns()
    if not memory.samples.agree():  # weights changed past PyTorch's count
        origin = _origin(model, memorised(model), *known)
    decided = {name: words for name, words in recorder.words.items() if words}
    settings = {**origin.settings, **decided, **drawn}
    return Trace(columns, replace(origin, settings=settings))


@checked
def trace_in_batches(
    model: nn.Module,
    x: Tensor,
    *,
    batch_size: int,
    metrics: Metrics = DEFAULT_METRICS,
    token_mask: Tensor | None = None,
    measured: Tensor | None = None,
    spectra: SpectraBy = "auto",
    on_batch: Callable[[], None] | None = None,
) -> Trace:
    """``trace`` for more samples than fit at once; ``on_batch`` is called after each batch."""
    parts: list[Trace] = []
    for batch in batches(x, token_mask, measured, size=batch_size):
        _, some, mask, counted = batch
        part = trace(
            model, some, metrics=metrics, token_mask=mask, measured=counted, spectra=spectra
        )
        parts.append(part)
        if on_batch is not None:
            on_batch()
    return Trace.joined(parts)


def _checked(
    model: object,
    metrics: Metrics,
    measured: Tensor | None,
    layout: object,
    output: object,
    spectra: object,
) -> tuple[Measure, ...]:
    """The measures asked for, once the other arguments are of a kind that can be used."""
    if not isinstance(model, nn.Module):
        raise KindError(f"model is a {type(model).__name__}, expected a torch.nn.Module.")
    if isinstance(model, torch.jit.ScriptModule):
        raise KindError(
            "a TorchScript model runs outside Python, where its blocks cannot be watched; trace "
            "the model it was made from."
        )
    if layout is not None and layout not in get_args(Layout):
        raise InputError(f"layout={layout!r} is unknown; choose {' or '.join(get_args(Layout))}.")
    if spectra not in get_args(SpectraBy):
        known = ", ".join(get_args(SpectraBy))
        raise InputError(f"spectra={spectra!r} is unknown; choose {known}.")
    if isinstance(output, bool) or not (
        output is None or isinstance(output, int | str) or callable(output)
    ):
        raise KindError(
            f"output is a {type(output).__name__}, expected the number or the key of a tensor in "
            "what a block gives, or a function of it."
        )
    measures = choose_measures(metrics)
    if measured is not None and all(each.of == "attention" for each in measures):
        raise InputError(
            "measured is for metrics of hidden states, and none was asked for: those of attention "
            "matrices are about all tokens; leave it out."
        )
    return measures


def _found_stack(model: nn.Module, memory: Memory) -> Stack:
    """The stack as it was found before; blocks that point back at their model are not kept."""
    name, paths = memory.once("stack", lambda: _paths(model, find_stack(model)))
    return Stack(name, [model.get_submodule(path) for path in paths])


def _paths(model: nn.Module, stack: Stack) -> tuple[str, list[str]]:
    paths = {id(module): path for path, module in model.named_modules()}
    return stack.name, [paths[id(block)] for block in stack.blocks]


def _mask(given: Given, token_mask: Tensor | None, place: Place | None) -> MaskReading:
    """Which tokens are real, as told, or as read; ``place`` is that of blocks that are not ours."""
    if token_mask is not None:
        return MaskReading(token_mask, "token_mask, as told")
    if place is None:
        return read_mask(given.by_name, decoder=False, model_type=None)
    mask = read_mask(given.by_name, decoder=place.is_decoder, model_type=place.model_type)
    if place.sees_other_input(given.by_name):
        return MaskReading(None, "none: the mask is about the text, not about these blocks' input")
    return mask


def _origin(
    model: nn.Module,
    memory: Memory,
    stack: Stack,
    given: Given,
    measures: Sequence[Measure],
    mask: Tensor | None,
    measured: Tensor | None,
) -> Provenance:
    """All that is known before the model runs; weights that are no numbers are refused here."""
    blocks = tuple(map(id, stack.blocks))
    words = memory.once(("words", stack.name, blocks), lambda: stack.words)
    settings = {"metrics": ", ".join(map(str, measures)), "stack": words}
    settings |= memory.once(
        ("soundness", blocks), lambda: refuse_broken(model, stack.blocks, digests=memory.digests)
    )
    if own := memory.once("own modes", lambda: own_modes(memory.modules())):
        settings["mode"] = f"evaluation, set without the train() that {', '.join(own)} has"
    return Provenance.of(
        model,
        given.by_name,
        token_mask=mask,
        measured=measured,
        settings=settings,
        known=memory,
    )
