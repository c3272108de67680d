"""The states of any model, the outputs of its sublayers and its attention, kept for later.

``record`` runs a model once, as ``trace`` does, and keeps what ``trace`` measures.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rankscope.core.metrics import AttentionScores
from rankscope.core.tracing._figures import Columns, Measure
from rankscope.core.tracing._observed_attention import FunctionWatch, TolerantWatch
from rankscope.core.tracing._sublayers import Part, Sublayers, few_numbers, is_close, kind_of
from rankscope.core.tracing._temporary_changes import TemporaryChanges
from rankscope.core.tracing._trace import Pass
from rankscope.core.weights import refuse_broken

Inputs = Tensor | Mapping[str, Any] | Sequence[Any]


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
                if x is None or not is_close(x, state, self.masks[layer]):
                    return None
            steps.append((part, state, after, out))
            state = after
        if not is_close(state, self.states[layer], self.masks[layer]):
            return None
        *most, (part, before, _, out) = steps
        return [*most, (part, before, self.states[layer], out)]


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
    if sublayers is None:  # once for each model, since all weights are read
        refuse_broken(model, planned.parts.stack.blocks)
    stack = planned.parts.stack
    watch = LayerWatch(model, stack.blocks, sublayers)
    notes = {"stack": stack.words}
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


class LayerWatch:
    """Hooks on blocks and the modules inside them, and on attention while a block runs.

    ``on_layer`` is called with each record when its block ends, and may take out of it what it has
    measured, so that it need not be kept. ``trusted`` says that an earlier pass heard all attention
    through Transformers' interface and verified it: then nothing else is listened to.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[nn.Module],
        sublayers: Sublayers | None,
        on_layer: Callable[[LayerRecord], None] | None = None,
        *,
        trusted: bool = False,
    ) -> None:
        self._model, self._blocks, self._sublayers = model, blocks, sublayers
        self._on_layer, self._trusted = on_layer, trusted
        self.layers: list[LayerRecord] = []
        self._running: LayerRecord | None = None
        self._counts: Counter[str] = Counter()
        self._started: dict[nn.Module, list[Tensor | None]] = defaultdict(list)
        self._interface = TolerantWatch(self._heard, self._unread, model, verifies=not trusted)
        self._functions = FunctionWatch(self._fused, self._unread_function)

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
        if not self._trusted:
            self._functions.begin()

    def _end(self, _block: nn.Module, _args: object, _output: object) -> None:
        self._functions.end()
        if self._on_layer is not None and self._running is not None:
            self._on_layer(self._running)
        self._running = None

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._started[module].append(self._kept((*args, *kwargs.values())))

    def _kept(self, values: Iterable[Any]) -> Tensor | None:
        """A copy of the first real tensor among some values, or of a few of its numbers."""
        for value in values:
            if isinstance(value, Tensor) and value.is_floating_point() and not value.is_nested:
                tensor = value.detach()
                return few_numbers(tensor) if self._sublayers is None else tensor.clone()
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
            self._interface.notes = self._running.unread

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
