"""``attach``: a model that is read once and traced as often as wanted; ``trace`` does it once."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, compress
from operator import is_
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from rankscope.arguments import checked
from rankscope.core.batches import batches
from rankscope.core.tracing import _figures
from rankscope.core.tracing._blocks import Named
from rankscope.core.tracing._figures import DEFAULT_METRICS, AttentionBy, Metrics, SpectraBy
from rankscope.core.tracing._hidden_states import Output, Stream
from rankscope.core.tracing._layouts import Layout
from rankscope.core.tracing._provenance import ModelRecord
from rankscope.core.tracing._temporary_changes import own_modes, refuse_scripted
from rankscope.core.tracing._trace import ModelParts, Pass, Trace
from rankscope.core.weights import named_tensors, refuse_broken, stamp
from rankscope.errors import InputError

_SINCE = (
    "weights and attributes since the session began (a session): changes that PyTorch does not "
    "count, such as writes to W.data, and changes inside attributes"
)
_PLAIN = (bool, int, float, str, type(None))
_LEFT_BY_PASSES = (Tensor, list, tuple, set, dict)
_OF_MODULES = frozenset(vars(nn.Module()))
Reader = Callable[[Any, Tensor | None], tuple[Any, Tensor | None]]


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
    stream: Stream | None = None,
    output: Output | None = None,
    spectra: SpectraBy = "auto",
    attention: AttentionBy = "all",
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
    table; ``auto`` estimates on a GPU. Other spectral metrics are always exact. For long sequences,
    ``attention="sampled"`` measures 64 queries of each sample, drawn evenly, in place of all, with
    the standard error of the mean as ``error``; metrics that are not means over queries raise an
    error. Layer 0 is the input of the first block.

    Unspecified options are inferred from the model, and the provenance says what was chosen and
    why: the stack, the mask, the ``layout`` (whether batch or tokens come first), and which tensor
    a block's ``output`` is (its number or key, or a function of the output). ``stream`` names the
    argument of a block that is its hidden states. Where two readings are possible, or none is
    supported by the evidence, an error names the option that decides. Blocks that do not take the
    output of the block before are not layers of one stack, and raise an error.
    Tracing does not synchronise with a GPU during the forward pass, unless exact spectra, σ₂ or a
    function of your own are requested, and only the figures of a layer are kept.
    The model runs in evaluation mode without gradients and is unchanged afterwards; only calls of
    this thread are recorded.
    """
    session = Session(model, blocks, layout, stream, output, keeps=False)
    return session.trace(
        inputs,
        metrics=metrics,
        token_mask=token_mask,
        measured=measured,
        spectra=spectra,
        attention=attention,
    )


class _Reading(NamedTuple):
    """A model as it was read: its parts and record, and what shows that it is still the same."""

    parts: ModelParts
    settings: dict[str, str]
    record: ModelRecord
    state: "_State | None"


class Session:
    """A model whose blocks, structure and weights are read once; see ``attach``.

    >>> import torch
    >>> from rankscope import Network, Spec, attach
    >>> with attach(Network.random(Spec(2, 2, 8), seed=0)) as session:
    ...     runs = [session.trace(torch.randn(1, 4, 8)) for _ in range(2)]
    >>> len(runs)
    2
    """

    @checked
    def __init__(
        self,
        model: nn.Module,
        blocks: Named | None = None,
        layout: Layout | None = None,
        stream: Stream | None = None,
        output: Output | None = None,
        *,
        keeps: bool = True,
    ) -> None:
        refuse_scripted(model)
        self._model: nn.Module | None = model
        self._blocks, self._keeps = blocks, keeps
        self._read: Reader = lambda inputs, token_mask: (inputs, token_mask)
        self._options: dict[str, Any] = {"layout": layout, "stream": stream, "output": output}
        self._reading: _Reading | None = None
        if keeps:
            self._current(model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._model = self._reading = None

    @checked
    def reading(self, read: Reader) -> Self:
        """The same session, whose inputs and token masks are converted by a function."""
        self._read = read
        return self

    @checked
    def trace(
        self,
        inputs: Any,
        *,
        metrics: Metrics = DEFAULT_METRICS,
        token_mask: Tensor | None = None,
        measured: Tensor | None = None,
        spectra: SpectraBy = "auto",
        attention: AttentionBy = "all",
    ) -> Trace:
        """Run the model once and measure every layer, as ``rankscope.trace`` does."""
        model = self._model
        if model is None:
            raise InputError("the session is closed; trace inside its with block.")
        inputs, token_mask = self._read(inputs, token_mask)
        measures = _figures.choose_measures(metrics)
        _figures.refuse_unsampled(measures, attention)
        if measured is not None and all(measure.of == "attention" for measure in measures):
            raise InputError(
                "measured applies to metrics of hidden states, and none is requested: attention "
                "metrics use all tokens; omit it."
            )
        reading = self._current(model)
        planned = Pass.planned(
            model,
            inputs,
            lambda layers: _figures.Figures(
                measures, layers + 1, spectra_by=spectra, attention_by=attention
            ),
            token_mask=token_mask,
            measured=measured,
            parts=reading.parts,
            **self._options,
        )
        settings = {"metrics": ", ".join(map(str, measures)), **reading.settings}
        arguments = planned.arguments
        masks = {"token_mask": planned.token_mask, "measured": measured}
        passed = [*enumerate(arguments.args), *arguments.kwargs.items()]
        mappings = [entry for entry in passed if isinstance(entry[1], Mapping)]
        named = arguments.by_name
        described = [named, mappings] if mappings else named  # ``named`` flattens mappings
        not_covered = (_SINCE,) if self._keeps else ()
        finish = reading.record.begin(described, masks, settings, not_covered)
        return Trace._of(planned.run(settings), finish)

    def _current(self, model: nn.Module) -> _Reading:
        """What is known of the model, which is read again if it is not the same."""
        known = self._reading
        if known is not None and known.state is not None and known.state.is_current():
            return known
        modules, named = list(model.modules()), named_tensors(model)
        state = _State(modules) if self._keeps else None
        parts = ModelParts.of(model, self._blocks, modules)
        settings = {"stack": parts.stack.words}
        settings |= refuse_broken(model, parts.stack.blocks, named)
        if kinds := own_modes(modules):
            settings["mode"] = f"evaluation, set without calling the train() of {', '.join(kinds)}"
        record = ModelRecord.of(model, named)
        reading = _Reading(parts, settings, record, state)
        self._reading = reading if self._keeps else None
        return reading


class _State:
    """What changes if modules or tensors are replaced, moved, cast or written to, if hooks are
    added or removed, or if an attribute gets another value; no number of a tensor is read."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        registries = [
            registry
            for module in modules
            if not isinstance(module, torch.jit.ScriptModule)  # cannot be changed
            for registry in (
                *(module._modules, module._parameters, module._buffers),
                *(module._forward_pre_hooks, module._forward_hooks),
            )
        ]
        hooks = (torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks)
        self._registries = _Snapshot([*hooks, *registries])
        self._modules, self._kinds = modules, [type(module) for module in modules]
        self._attributes = _Snapshot([vars(module) for module in modules])
        self._by_module = [_Snapshot([vars(module)]) for module in modules]
        self._tensors = list(chain.from_iterable(map(_tensors_of, modules)))
        self._stamps = [stamp(tensor) for tensor in self._tensors]

    def is_current(self) -> bool:
        """Whether nothing changed."""
        current = [vars(module) for module in self._modules]
        if not self._registries.is_same() or [type(m) for m in self._modules] != self._kinds:
            return False
        if [stamp(tensor) for tensor in self._tensors] != self._stamps:
            return False
        if not self._attributes.is_of(current):  # a module's dictionary was replaced
            return False
        if self._attributes.is_same():
            return True
        for module, snapshot in zip(self._modules, self._by_module, strict=True):
            ours = type(module).__module__.startswith("rankscope.")
            if not (snapshot.is_same() or snapshot.is_equal(ours=ours)):
                return False
        self._attributes = _Snapshot(current)  # such as modes: compared at once from now on
        self._by_module = [_Snapshot([some]) for some in current]
        return True


def _tensors_of(module: nn.Module) -> list[Tensor]:
    registered = (*module._parameters.values(), *module._buffers.values())
    return [tensor for tensor in registered if tensor is not None]


class _Snapshot:
    """Which objects were in some dictionaries, by their identities: thousands are compared in each
    pass, by a few calls.

    Objects are held, so that no other has the identity of one, but for those that a pass may leave
    in an attribute: tensors, and containers of them.
    """

    def __init__(self, current: Sequence[dict[Any, Any]]) -> None:
        self._current, self._sizes = current, [*map(len, current)]
        self._names = [*chain.from_iterable(current)]
        values = [*chain.from_iterable(some.values() for some in current)]
        self._ids = [*map(id, values)]
        self._is_held = [
            name in _OF_MODULES or type(value) not in _LEFT_BY_PASSES
            for name, value in zip(self._names, values, strict=True)
        ]
        self._held = [*compress(values, self._is_held)]
        self._others = [place for place, is_held in enumerate(self._is_held) if not is_held]

    def is_of(self, dictionaries: Sequence[dict[Any, Any]]) -> bool:
        """Whether these are the dictionaries."""
        return all(map(is_, dictionaries, self._current))

    def is_same(self) -> bool:
        """Whether they hold the same objects."""
        if [*map(len, self._current)] != self._sizes:
            return False
        if [*chain.from_iterable(self._current)] != self._names:
            return False
        values = [*chain.from_iterable(map(dict.values, self._current))]
        return all(map(is_, compress(values, self._is_held), self._held)) and all(
            id(values[place]) == self._ids[place] for place in self._others
        )

    def is_equal(self, *, ours: bool) -> bool:
        """Whether the attributes of a module are the same objects, or equal numbers and texts.

        Modes are set by every trace, and ``ours``, our own modules, keep what they computed.
        """

        def counts(name: str) -> bool:
            return name != "training" and not (ours and name[0] == "_" and name != "_seed")

        now = {name: value for name, value in self._current[0].items() if counts(name)}
        held = dict(zip(compress(self._names, self._is_held), self._held, strict=True))
        places = dict(zip(self._names, self._ids, strict=True))
        return now.keys() == {name for name in self._names if counts(name)} and all(
            id(value) == places[name]
            or (
                type(value) in _PLAIN
                and type(value) is type(held.get(name))
                and value == held[name]
            )
            for name, value in now.items()
        )


@checked
def attach(
    model: nn.Module,
    *,
    blocks: Named | None = None,
    layout: Layout | None = None,
    stream: Stream | None = None,
    output: Output | None = None,
) -> Session:
    """Read a model once, to trace it many times.

    >>> import torch
    >>> from rankscope import Network, Spec, attach
    >>> net = Network.random(Spec(2, 2, 8), seed=0)
    >>> with attach(net) as session:
    ...     traces = [session.trace(torch.randn(1, 5, 8)) for _ in range(3)]

    ``session.trace`` has the numbers of ``rankscope.trace`` and takes its options, except for those
    given here. The blocks, the digest of the weights and that of the structure are kept from pass
    to pass, and calls of Transformers' own attention functions are compared with their output in
    the first pass of each kind.
    Before each pass the session looks whether modules, tensors or hooks were replaced, weights
    moved, cast or written to, or attributes set, and then reads the model again. It cannot see
    writes that PyTorch does not count (``W.data[0] = 0``) and changes inside attributes (of a list
    or a configuration): the model runs as it is, so that figures of states are right then too, but
    what was compared in an earlier pass is not compared again, and the provenance is that of
    before, which its ``settings["not covered"]`` says.
    """
    return Session(model, blocks, layout, stream, output)


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
    on_step: Callable[[float], None] | None = None,
) -> Trace:
    """``trace`` for more samples than fit at once.

    >>> import torch
    >>> from rankscope import Network, Spec
    >>> from rankscope.core.tracing import trace_in_batches
    >>> net = Network.random(Spec(2, 2, 8), seed=0)
    >>> trace_in_batches(net, torch.randn(5, 4, 8), batch_size=2)
    Trace of Network, seed 0: layers 0 to 2, samples 0 to 4; ...

    ``on_step`` is called after each batch with the share of the samples that is done.
    """
    parts: list[Trace] = []
    done = 0
    for batch in batches(x, token_mask, measured, size=batch_size):
        _, samples, mask, counted = batch
        part = trace(
            model, samples, metrics=metrics, token_mask=mask, measured=counted, spectra=spectra
        )
        parts.append(part)
        done += len(samples)
        if on_step is not None:
            on_step(done / len(x))
    return Trace.joined(parts)
