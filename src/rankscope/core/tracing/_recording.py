"""The states of any model, the outputs of its sublayers and its attention, kept for later.

``record`` runs a model once, as ``trace`` does, and keeps what ``trace`` measures. Where the
sublayers of a block are is not known beforehand: ``find_sublayers`` looks for module outputs that,
added to the block's input one after another (with norms after a sum), give the block's output to
rounding. Nothing is assumed that the numbers do not confirm.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from rankscope.core.metrics import AttentionScores
from rankscope.core.tracing._attention import SIGNATURE, AttentionWatch, projected
from rankscope.core.tracing._attention_reading import Call
from rankscope.core.tracing._figures import Columns, Measure
from rankscope.core.tracing._hidden_states import OperationWatch
from rankscope.core.tracing._temporary_changes import TemporaryChanges
from rankscope.core.tracing._trace import Pass
from rankscope.errors import ModelError, RankscopeError

Inputs = Tensor | Mapping[str, Any] | Sequence[Any]
Part = Literal["attention", "mixer", "MLP", "norm"]
_PARTS: Final[Mapping[Part, re.Pattern[str]]] = {
    "attention": re.compile(r"attn|attention", re.IGNORECASE),
    "mixer": re.compile(
        r"mamba|ssm|mixer|conv|rnn|lstm|gru|rwkv|delta|recurrent|fourier|hyena|retention",
        re.IGNORECASE,
    ),
    "MLP": re.compile(r"mlp|ffn|feed|(^|[._])ff|(^|[._])fc|expert|moe|intermediate", re.IGNORECASE),
}
"""What sublayers are called; a mixer moves information between tokens without a softmax."""
_NORM: Final = re.compile(r"norm|(^|[._])ln", re.IGNORECASE)
_TOLERANCES: Final = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 4e-3}
"""Relative differences up to which two states are equal; bfloat16 rounds most."""
_ROUGH: Final = 3e-2
_NUMBERS: Final = 4096
"""Numbers of a state by which sublayers are looked for; the whole state confirms them."""
_MOST_STEPS: Final = 6
_MASKED: Final = -1e3
"""Scores below are hidden keys, or are so extreme that the two cannot be told apart."""
_SOFTMAX: Final = (functional.softmax, torch.softmax, Tensor.softmax)


class Sublayer(NamedTuple):
    """A module inside a block whose output is added to the state, or replaces it (a norm).

    ``call`` counts the calls of the module within one run of the block; ``members`` are the paths
    of all modules that ran for it.
    """

    part: Part
    path: str
    call: int = 0
    members: tuple[str, ...] = ()

    def has(self, path: str) -> int:
        """How closely a module belongs to it, by the length of the path they share; 0: not."""
        around = [m for m in self.members if path == m or path.startswith(f"{m}.")]
        return max((len(member) for member in around), default=0)


Sublayers = Mapping[tuple[Any, ...], tuple[Sublayer, ...]]
"""The sublayers of each kind of block (``kind_of``), in the order they act."""


class SublayerCall(NamedTuple):
    """One call of a module inside a block: what it got and gave."""

    path: str
    call: int
    x: Tensor | None
    output: Tensor | None


@dataclass(frozen=True, eq=False)
class LayerRecord:
    """A block that ran: its calls, its attention, and why that could not be read, if so."""

    block: nn.Module
    calls: list[SublayerCall] = field(default_factory=list)
    heard: list[AttentionScores] = field(default_factory=list)
    fused: list[AttentionScores] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    unread_functions: list[str] = field(default_factory=list)

    def attention(
        self, tokens: int, samples: int | None = None
    ) -> tuple[AttentionScores | None, str]:
        """The one self-attention between so many tokens, or why there is none to be read."""
        if self.unread:
            return None, self.unread[0]
        for scores in (self.heard, self.fused):
            if scores is self.fused and self.unread_functions:
                return None, self.unread_functions[0]
            square = [one for one in scores if one.shape[2] == one.shape[3] == tokens]
            square = [one for one in square if samples in (None, one.shape[0])]
            if len(square) == 1:
                return square[0], ""
            if scores:
                count = len(square) or "no"
                return None, f"it has {count} softmax attentions between all its tokens"
        return None, "it computes no softmax attention that can be observed"


@dataclass(frozen=True, eq=False)
class Recording:
    """States by layer from 0, as (batch, token, feature); their masks; records by layer from 1.

    ``shapes`` are those of the states of all samples, and of all tokens.
    """

    states: list[Tensor]
    masks: list[Tensor | None]
    shapes: list[torch.Size]
    layers: list[LayerRecord]
    token_first: bool
    notes: Mapping[str, str]
    rows: Tensor | None = None
    """The samples that were selected; all unless given."""

    def of_samples(self, rows: Tensor) -> "Recording":
        """The recording of some of the samples."""
        masks = [mask if mask is None else mask[rows] for mask in self.masks]
        return replace(self, states=[state[rows] for state in self.states], masks=masks, rows=rows)

    def trimmed(self, tokens: int) -> "Recording":
        """Without the padding that a model adds on the right of its input by itself."""
        longer = [mask for mask in self.masks if mask is not None and mask.shape[1] > tokens]
        if not longer or any(bool(mask[:, tokens:].any()) for mask in longer):
            return self
        masks = [mask if mask is None else mask[:, :tokens] for mask in self.masks]
        return replace(self, states=[state[:, :tokens] for state in self.states], masks=masks)

    def attention(self, layer: int) -> tuple[AttentionScores | None, str]:
        """The self-attention of a layer, or why it could not be read."""
        (samples, tokens, _), rows = self.states[layer].shape, self.rows
        if rows is None:
            return self.layers[layer - 1].attention(tokens, samples)
        scores, why = self.layers[layer - 1].attention(tokens)
        if scores is None:
            return None, why
        tensors = {name: getattr(scores, name) for name in ("query", "key", "bias", "mask")}
        picked = {
            name: value if value is None or len(value) == 1 < scores.shape[0] else value[rows]
            for name, value in tensors.items()
        }
        return replace(scores, **picked), ""

    def _like_state(self, tensor: Tensor, layer: int) -> Tensor | None:
        """A tensor of a module inside a block in the layout of the states, if it has its size."""
        samples, tokens, features = self.shapes[layer]
        if tensor.numel() != samples * tokens * features:
            return None
        if self.token_first:
            tensor = tensor.reshape(tokens, samples, features).transpose(0, 1)
        else:
            tensor = tensor.reshape(samples, tokens, features)
        tensor = tensor if self.rows is None else tensor[self.rows]
        return tensor[:, : self.states[layer].shape[1]]

    def steps(
        self, layer: int, sublayers: Sublayers
    ) -> list[tuple[Part, Tensor, Tensor, Tensor]] | None:
        """The sublayers of a layer at work: part, state before, after, and its own output.

        None where they are not known, or where the state they add up to is not that of the layer.
        """
        record, state = self.layers[layer - 1], self.states[layer - 1]
        if (known := sublayers.get(kind_of(record.block))) is None:
            return None
        by_name = {(call.path, call.call): call for call in record.calls}
        steps = []
        for part, path, number, _ in known:
            call = by_name.get((path, number))
            if call is None or call.output is None or self.states[layer].shape != state.shape:
                return None
            out = self._like_state(call.output, layer)
            if out is None:
                return None
            after = out if part == "norm" else state + out
            if part == "norm":
                x = None if call.x is None else self._like_state(call.x, layer)
                if x is None or not _is_close(x, state, self.masks[layer]):
                    return None
            steps.append((part, state, after, out))
            state = after
        if not _is_close(state, self.states[layer], self.masks[layer]):
            return None
        *most, (part, before, _, out) = steps
        return [*most, (part, before, self.states[layer], out)]


def kind_of(block: nn.Module) -> tuple[Any, ...]:
    """What blocks with the same sublayers have in common: their class and children."""
    return (type(block), *((name, type(child)) for name, child in block.named_children()))


def record(
    model: nn.Module,
    inputs: Inputs,
    *,
    token_mask: Tensor | None = None,
    measured: Tensor | None = None,
    sublayers: Sublayers | None = None,
    **options: Any,
) -> Recording:
    """Run a model once and keep its states, attention, and the outputs of ``sublayers``.

    ``options`` are ``blocks`` and others of ``trace``, and the states are those that it measures.
    Without ``sublayers``, a few numbers are kept of the calls of all modules inside the blocks,
    for ``find_sublayers``.
    """
    kept = _KeptStates()
    planned = Pass.planned(
        model, inputs, lambda _: kept, token_mask=token_mask, measured=measured, **options
    )
    watch = _LayerWatch(model, planned.stack.blocks, sublayers)
    notes = {"stack": planned.stack.words}
    planned.run(notes, watch.listen)
    watch.judge()
    layers = range(len(kept.states))
    return Recording(
        [kept.states[layer] for layer in layers],
        [kept.masks[layer] for layer in layers],
        [kept.states[layer].shape for layer in layers],
        watch.layers,
        planned.recorder.token_first,
        notes,
    )


class _KeptStates:
    """What a ``Recorder`` is given instead of ``Figures``: it keeps the states."""

    of_states: tuple[Measure, ...] = ()
    of_attention: tuple[Measure, ...] = ()
    words = ""

    def __init__(self) -> None:
        self.states: dict[int, Tensor] = {}
        self.masks: dict[int, Tensor | None] = {}

    def measure(self, hidden: Tensor, layer: int, mask: Tensor | None) -> None:
        """Keep a copy: later blocks may work in place."""
        self.states[layer], self.masks[layer] = hidden.detach().clone(), mask

    def send(self) -> None:
        """Nothing waits on the device."""

    def finish(self) -> tuple[Columns, None]:
        """No figures."""
        return {}, None


class _LayerWatch:
    """Hooks on blocks and the modules inside them, and on attention while a block runs."""

    def __init__(
        self, model: nn.Module, blocks: Sequence[nn.Module], sublayers: Sublayers | None
    ) -> None:
        self._model, self._blocks, self._sublayers = model, blocks, sublayers
        self.layers: list[LayerRecord] = []
        self._running: LayerRecord | None = None
        self._counts: Counter[str] = Counter()
        self._started: dict[nn.Module, list[Tensor | None]] = defaultdict(list)
        self._interface = _TolerantWatch(self._heard, self._unread, model)
        self._functions = _FunctionWatch(self._fused, self._unread_function)

    def listen(self, changes: TemporaryChanges) -> None:
        """Register all hooks."""
        changes.undo_later(self._functions.end)
        self._interface.listen(changes)
        for encoder in self._model.modules():
            # Nested tensors have a fast path only, in which attention cannot be observed.
            if isinstance(encoder, nn.TransformerEncoder) and encoder.use_nested_tensor:
                switch = partial(setattr, encoder, "use_nested_tensor")
                changes.change(partial(switch, False), partial(switch, True))
        for block in dict.fromkeys(self._blocks):
            changes.before(block, self._begin)
            for path, module in block.named_modules():
                if path and self._wanted(block, path):
                    changes.before(module, self._before)
                    changes.after(module, _named_hook(self._after, path))
            changes.after(block, self._end)

    def _wanted(self, block: nn.Module, path: str) -> bool:
        if self._sublayers is None:
            return True
        return any(one.path == path for one in self._sublayers.get(kind_of(block), ()))

    def judge(self) -> None:
        """Mark layers whose attention does not match the output of its function."""
        self._interface.mark()

    def _begin(self, block: nn.Module, _args: object, _kwargs: object) -> None:
        self._running = LayerRecord(block)
        self.layers.append(self._running)
        self._counts.clear()
        self._functions.begin()

    def _end(self, _block: nn.Module, _args: object, _output: object) -> None:
        self._functions.end()
        self._running = None

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._started[module].append(self._kept((*args, *kwargs.values())))

    def _kept(self, values: Iterable[Any]) -> Tensor | None:
        """A copy of the first real tensor among some values, or of a few of its numbers."""
        for value in values:
            if isinstance(value, Tensor) and value.is_floating_point() and not value.is_nested:
                tensor = value.detach()
                return _few_numbers(tensor) if self._sublayers is None else tensor.clone()
        return None

    def _after(self, path: str, module: nn.Module, _args: object, output: Any) -> None:
        x = self._started[module].pop()
        if self._running is not None:
            given = output if isinstance(output, tuple | list) else (output,)
            call = SublayerCall(path, self._counts[path], x, self._kept(given))
            self._counts[path] += 1
            self._running.calls.append(call)

    def _heard(self, _module: nn.Module, scores: AttentionScores) -> None:
        if self._running is not None:
            self._running.heard.append(scores)
            self._interface.layer = self._running

    def _fused(self, scores: AttentionScores) -> None:
        if self._running is not None:
            self._running.fused.append(scores)

    def _unread(self, why: str) -> None:
        if self._running is not None:
            self._running.unread.append(why)

    def _unread_function(self, why: str) -> None:
        if self._running is not None:
            self._running.unread_functions.append(why)


def _named_hook(hook: Callable[..., None], path: str) -> Callable[..., None]:
    return lambda *call: hook(path, *call)


def _few_numbers(tensor: Tensor) -> Tensor:
    """Numbers at fixed places of a tensor, by which two tensors of one shape are compared."""
    return tensor.flatten()[:: max(1, tensor.numel() // _NUMBERS)].double()


class _TolerantWatch(AttentionWatch):
    """Hears what goes through Transformers' interface; what cannot be read is noted, not raised."""

    def __init__(
        self,
        callback: Callable[[nn.Module, AttentionScores], None],
        unread: Callable[[str], None],
        model: nn.Module,
    ) -> None:
        super().__init__(callback, model)
        self._note_unread = unread
        self.layer: LayerRecord | None = None
        self._layers: list[LayerRecord | None] = []

    def before(self, call: Call) -> AttentionScores | None:
        """As that of ``AttentionWatch``."""
        try:
            return super().before(call)
        except RankscopeError as error:
            self._note_unread(str(error).rstrip("."))
            return None

    def after(self, call: Call, scores: AttentionScores, output: Tensor) -> None:
        """As that of ``AttentionWatch``; the layer that was heard last is the one it is about."""
        try:
            super().after(call, scores, output)
        except RankscopeError as error:
            self._note_unread(str(error).rstrip("."))
            return
        self._layers.append(self.layer)

    def mark(self) -> None:
        """Note every layer of which the output does not match what was read."""
        for (error, doubt), layer in zip(self._doubts, self._layers, strict=True):
            if layer is not None and not float(doubt) <= 1:
                layer.unread.append(str(error).rstrip("."))


class _FunctionWatch(OperationWatch):
    """Hears PyTorch's attention functions, and a softmax over pairs of tokens, by themselves."""

    def __init__(
        self, heard: Callable[[AttentionScores], None], unread: Callable[[str], None]
    ) -> None:
        super().__init__()
        self._heard, self._unread = heard, unread

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        try:
            scores = None
            if func is functional.scaled_dot_product_attention:
                scores = _of_fused(*args, **named)
            elif func is functional.multi_head_attention_forward:
                scores = _of_multi_head(*args, **named)
            elif func in _SOFTMAX:
                scores = _of_softmax(*args, **named)
            if scores is not None:
                self._heard(scores)
        except (RankscopeError, RuntimeError, TypeError) as error:
            self._unread(f"its attention cannot be read ({str(error).rstrip('.')})")
        return func(*args, **named)


def _of_fused(
    query: Tensor,
    key: Tensor,
    _value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **_options: Any,
) -> AttentionScores:
    """PyTorch's fused attention as scores."""
    if dropout_p:
        raise ModelError("it applies dropout")
    if query.ndim != 4:
        raise ModelError(f"queries have shape {tuple(query.shape)}")
    bias, mask = None, None
    if attn_mask is not None:
        while attn_mask.ndim < 4:
            attn_mask = attn_mask.unsqueeze(0)
        bias, mask = (None, attn_mask) if attn_mask.dtype == torch.bool else (attn_mask, None)
    return AttentionScores(
        query=query.detach().clone(),
        key=key.detach().clone(),
        scale=float(query.shape[-1] ** -0.5 if scale is None else scale),
        bias=bias,
        mask=mask,
        causal=is_causal,
    )


def _of_multi_head(*args: Any, **kwargs: Any) -> AttentionScores:
    """PyTorch's attention with its projections, which takes tokens first."""
    named = SIGNATURE.bind(*args, **kwargs)
    named.apply_defaults()
    given = named.arguments
    if given["query"].ndim != 3 or given["bias_k"] is not None or given["add_zero_attn"]:
        raise ModelError("it has no batch, or keys that are no tokens")
    if given["training"] and given["dropout_p"]:
        raise ModelError("it applies dropout")
    query, key = (tensor.permute(1, 2, 0, 3) for tensor in projected(*args, **kwargs))
    batch, heads, queries, keys = *query.shape[:3], key.shape[2]
    bias = query.new_zeros(1, 1, queries, keys)
    pairs, padding = given["attn_mask"], given["key_padding_mask"]
    if pairs is not None:
        shape = (1, 1, queries, keys) if pairs.ndim == 2 else (batch, heads, queries, keys)
        bias = bias + _added(pairs, query.dtype).reshape(shape)
    if padding is not None:
        bias = bias + _added(padding, query.dtype)[:, None, None, :]
    return AttentionScores(
        query=query,
        key=key,
        scale=float(query.shape[-1] ** -0.5),
        bias=bias,
        causal=bool(given["is_causal"] and pairs is None),
    )


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask of PyTorch's attention, True where a key is hidden, as what is added to logits."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)


def _of_softmax(
    input: Tensor,
    dim: int | None = None,
    *_: Any,
    **__: Any,
) -> AttentionScores | None:
    """A softmax over the last axis of (batch, head, token, token) as scores; None for others."""
    if input.ndim != 4 or input.shape[2] != input.shape[3] or dim not in (-1, 3):
        return None
    logits = input.detach().clone()
    lowest = torch.finfo(logits.dtype).min / 2
    if bool(((logits > lowest) & (logits < _MASKED)).any()):
        raise ModelError("logits below −1000 may be hidden keys, or not")
    nothing = logits.new_zeros(*logits.shape[:3], 0)
    key = logits.new_zeros(logits.shape[0], 1, logits.shape[3], 0)
    return AttentionScores(query=nothing, key=key, scale=1.0, bias=logits)


def _is_close(x: Tensor, state: Tensor, mask: Tensor | None = None) -> bool:
    """Whether two states are equal up to rounding, on the tokens that count."""
    tolerance = _TOLERANCES.get(state.dtype, _ROUGH)
    apart, size = x.double() - state.double(), state.double()
    if mask is not None and mask.shape == state.shape[:2]:
        apart, size = (torch.where(mask.unsqueeze(-1), one, 0.0) for one in (apart, size))
    return bool(apart.norm() <= tolerance * size.norm())


def find_sublayers(recording: Recording) -> Sublayers:
    """The sublayers of each kind of block: of the layers of a kind, the ones with the most.

    A sublayer that adds nothing cannot be found by its numbers, but the same one in other layers
    can; ``Recording.steps`` confirms each layer.
    """
    most: dict[tuple[Any, ...], tuple[Sublayer, ...]] = {}
    for layer, one in enumerate(recording.layers, start=1):
        steps = _Search(recording, layer).steps() or ()
        if len(steps) > len(most.get(kind_of(one.block), ())):
            most[kind_of(one.block)] = steps
    return most


class _Search:
    """The search for the steps from a block's input to its output."""

    def __init__(self, recording: Recording, layer: int) -> None:
        before, after = recording.states[layer - 1], recording.states[layer]
        self._calls = recording.layers[layer - 1].calls
        self._dtype = after.dtype
        self._fits = before.shape == after.shape
        self._before, self._after = (
            _few_numbers(state.transpose(0, 1) if recording.token_first else state)
            for state in (before, after)
        )

        def like_state(numbers: Tensor | None) -> Tensor | None:
            return None if numbers is None or len(numbers) != len(self._after) else numbers

        self._inputs = [like_state(call.x) for call in self._calls]
        self._outputs = [like_state(call.output) for call in self._calls]

    def steps(self) -> tuple[Sublayer, ...] | None:
        """The sublayers in order; None if the numbers show none."""
        found = self._follow(self._before, 0, ()) if self._fits else None
        return None if found is None else tuple(self._named(found))

    def _same(self, x: Tensor | None, y: Tensor) -> bool:
        tolerance = _TOLERANCES.get(self._dtype, _ROUGH)
        return x is not None and bool((x - y).norm() <= tolerance * y.norm())

    def _is_seen(self, state: Tensor, after: int) -> bool:
        """Whether a later module takes a state, or it is the block's output."""
        later = self._inputs[after + 1 :]
        return self._same(self._after, state) or any(self._same(x, state) for x in later)

    def _follow(
        self, state: Tensor, start: int, steps: tuple[tuple[int, bool], ...]
    ) -> tuple[tuple[int, bool], ...] | None:
        """Indices of calls, and whether each is a norm, that lead from a state to the output."""
        if steps and self._same(self._after, state):
            return steps
        if len(steps) == _MOST_STEPS:
            return None
        for at in range(start, len(self._calls)):
            out = self._outputs[at]
            if out is None or self._same(state + out, state):
                continue
            options = [(state + out, False)]
            if _NORM.search(self._calls[at].path) and self._same(self._inputs[at], state):
                options.append((out, True))
            for after, norm in options:
                if self._is_seen(after, at):
                    found = self._follow(after, at + 1, (*steps, (at, norm)))
                    if found is not None:
                        return found
        return self._side_by_side(state, start, steps)

    def _side_by_side(
        self, state: Tensor, start: int, steps: tuple[tuple[int, bool], ...]
    ) -> tuple[tuple[int, bool], ...] | None:
        """Two branches of one state, whose sum is the output."""
        outputs = [
            (at, out) for at, out in enumerate(self._outputs) if at >= start and out is not None
        ]
        for at, first in outputs:
            for then, second in outputs:
                if then > at and self._same(self._after, state + first + second):
                    return (*steps, (at, False), (then, False))
        return None

    def _named(self, steps: Sequence[tuple[int, bool]]) -> Iterable[Sublayer]:
        start = 0
        for at, norm in steps:
            path = self._calls[at].path
            earlier = [call.path for call in self._calls[:start]]
            # A module around an earlier sublayer ends late.
            members = tuple(
                call.path
                for call in self._calls[start : at + 1]
                if not any(one.startswith(f"{call.path}.") for one in earlier)
            )
            firsts = {one.partition(".")[0] for one in earlier}
            inside = [one for one in members if one.partition(".")[0] not in firsts]
            inside = [one for one in inside if not _NORM.search(one)]
            part: Part = "norm" if norm else part_of(path) or part_of(*inside) or "MLP"
            yield Sublayer(part, path, self._calls[at].call, members)
            start = at + 1


def part_of(*paths: str) -> Part | None:
    """What a branch is, by the names of the modules that ran in it; None if they do not say."""
    for part, names in _PARTS.items():
        if any(names.search(path) for path in paths):
            return part
    return None
