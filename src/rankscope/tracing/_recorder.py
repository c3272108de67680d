"""Forward hooks that turn each layer's output into numbers and keep nothing else."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.errors import InputError, RankscopeError, ShapeError
from rankscope.metrics import deviations, spectra
from rankscope.network import Attention, Block
from rankscope.tracing._calls import Calls
from rankscope.tracing._hooks import each_once, thread_hooks
from rankscope.tracing._layout import LayoutChoice
from rankscope.tracing._measures import Measure
from rankscope.tracing._network_attention import network_scores
from rankscope.tracing._outputs import OpenChoice, OutputChoice
from rankscope.tracing._overflow import OverflowWatch
from rankscope.tracing._tensors import first_tensor, real_tensors
from rankscope.tracing._tokens import TokenChoice

Columns = dict[str, list[Any]]

_FOUND_ONCE: dict[str, Callable[..., Any]] = {"deviation": deviations, "spectrum": spectra}
"""What several metrics are functions of, found once per layer for all of them."""


class Recorder:
    """Measures what each block makes, in the order they run; layer 0 is the first block's input.

    What is not known of the model beforehand (its layout, which tensor is meant, which tokens are
    real) is decided while it runs, by the choices it is given.
    """

    def __init__(
        self,
        measures: Sequence[Measure],
        blocks: Sequence[nn.Module],
        *,
        layout: LayoutChoice,
        output: OutputChoice,
        tokens: TokenChoice,
    ) -> None:
        self._states = [measure for measure in measures if measure.of != "attention"]
        self._attention = [measure for measure in measures if measure.of == "attention"]
        self._blocks = list(blocks)
        self._calls = Calls(blocks)
        self._layout, self._output, self._tokens = layout, output, tokens
        self._input_shape = torch.Size()  # of what the running block was given
        self._first_shape = torch.Size()  # of layer 0
        self._shapes: dict[str, int] = {}  # tokens and features in words, and the layer from which
        self._first: Tensor | None = None  # layer 0, while its layout is not known
        self._open: OpenChoice | None = None  # an output of several tensors, while undecided
        self._overflow = OverflowWatch()
        self._samples = 0
        self._rows: list[tuple[int, str, Tensor]] = []
        self.words: dict[str, str] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Hooks on all blocks while the context lasts; none is left behind, whatever happens."""
        with thread_hooks() as hooks, ExitStack() as leaving:
            leaving.callback(self._overflow.end)
            for block in each_once(self._blocks):
                hooks.before(block, self._before)
                hooks.after(block, self._after)
                if self._attention:
                    hooks.before(_attention(block), self._attend)
            for attention in self._layout.attentions:
                hooks.before(attention, self._look_at_query)
            yield
            self._overflow.refuse()
            self._close(None)
            order = self._calls.finish(elsewhere=hooks.elsewhere)
            decided = {"layout": self._layout.words, "tensor": self._output.words, "order": order}
            self.words = {**decided, **self._tokens.words, "shape": self._shape_words()}

    def columns(self) -> Columns:
        """Everything recorded, one list per column; ``head`` only if attention was measured."""
        table: Columns = {"layer": [], "head": [], "sample": [], "metric": [], "value": []}
        for layer, name, values in self._rows:
            per_head = values.reshape(values.shape[0], -1).double().cpu()
            samples, heads = per_head.shape
            is_attention = values.ndim == 2
            table["layer"] += [layer] * per_head.numel()
            table["head"] += [h if is_attention else None for h in range(heads)] * samples
            table["sample"] += [s for s in range(samples) for _ in range(heads)]
            table["metric"] += [name] * per_head.numel()
            table["value"] += per_head.flatten().tolist()
        if not self._attention:
            del table["head"]
        return table

    def _before(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        taken = real_tensors((*args, kwargs))
        self._close(taken)
        hidden = self._calls.made(taken)
        if hidden is None:
            hidden = first_tensor((*args, kwargs))
        if self._calls.layer == 0:
            self._first_shape = hidden.shape
            self._layout.look_at_state(hidden)
            if self._layout.token_first is None:
                self._first = hidden.clone()  # the block may work in place
            else:
                self._measure(hidden, 0)
        self._calls.enter(block, hidden)
        self._input_shape = hidden.shape
        self._overflow.begin(block, self._calls.layer)

    def _after(self, _block: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        self._overflow.end()
        if self._first is not None:
            self._layout.settle()
            self._measure_first()
        hidden = self._output.immediate(output)
        if hidden is None:
            self._open = OpenChoice(output, self._input_shape)
            self._calls.leave(self._open.found[0].tensor)
        else:
            self._calls.leave(hidden)
            self._measure(hidden, self._calls.layer)

    def _look_at_query(
        self, attention: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if self._first is not None:
            query = args[0] if args else kwargs.get("query")
            self._layout.look_at_query(attention, query, self._first)
            if self._layout.token_first is not None:
                self._measure_first()

    def _measure_first(self) -> None:
        assert self._first is not None
        first, self._first = self._first, None
        self._measure(first, 0)

    def _close(self, taken: Sequence[Tensor] | None) -> None:
        """Decide which tensor the block before made, now that the next block's input is known."""
        if self._open is not None:
            open_, self._open = self._open, None
            if taken is None:
                hidden = self._output.alone(open_)
            else:
                hidden = self._output.with_next(open_, taken, self._first_shape)
            self._calls.leave(hidden)
            self._measure(hidden, self._calls.layer)

    def _shape_words(self) -> str:
        """How the hidden states' shape changes with the layer, where it does."""
        changes = [f"{shape} from layer {layer} on" for shape, layer in self._shapes.items()]
        return ", ".join(changes) if len(changes) > 1 else ""

    def _attend(self, attention: Attention, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        layer, (x, visibility) = self._calls.layer, args
        scores = network_scores(attention, x, visibility, self._tokens.real(x))
        for measure in self._attention:
            self._keep(measure, layer, _apply(measure.name, layer, measure.compute, scores))

    def _measure(self, hidden: Tensor, layer: int) -> None:
        if self._layout.token_first and hidden.ndim == 3:
            hidden = hidden.transpose(0, 1)
        if hidden.ndim == 2:
            hidden = hidden.unsqueeze(0)
        if hidden.ndim != 3:
            raise ShapeError(
                f"layer {layer} has shape {tuple(hidden.shape)}, expected "
                "(batch, token, feature); name blocks that work on sequences."
            )
        self._samples = hidden.shape[0]
        shape = f"{hidden.shape[1]} tokens of {hidden.shape[2]} features"
        self._shapes.setdefault(shape, layer)
        self._calls.check_samples(self._samples)
        measured = self._tokens.measured(hidden)
        found: dict[str, Any] = {}
        for measure in self._states:
            if measure.of in _FOUND_ONCE and measure.of not in found:
                prepare = partial(_FOUND_ONCE[measure.of], token_mask=measured)
                found[measure.of] = _apply(measure.name, layer, prepare, hidden)
            if measure.of in found:
                value = _apply(measure.name, layer, measure.compute, found[measure.of])
            else:
                compute = partial(measure.compute, token_mask=measured)
                value = _apply(measure.name, layer, compute, hidden)
            self._keep(measure, layer, value)

    def _keep(self, measure: Measure, layer: int, value: Tensor) -> None:
        axes = 2 if measure.of == "attention" else 1
        fits = isinstance(value, Tensor) and value.ndim == axes and value.shape[0] == self._samples
        if not fits:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ShapeError(
                f"metric {measure.name!r} gave {got} for {self._samples} samples; "
                "it must give a tensor with one number for each."
            )
        # A copy: a view would keep a whole layer alive.
        self._rows.append((layer, measure.name, value.detach().clone()))


def _apply(name: str, layer: int, compute: Callable[[Any], Any], tensor: Any) -> Any:
    try:
        # What a model computes in under autocast is its own affair; figures keep their digits.
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return compute(tensor)
    except RankscopeError as error:
        raise type(error)(f"layer {layer}, {name}: {error}") from error


def _attention(block: nn.Module) -> Attention:
    if not isinstance(block, Block):
        raise InputError(
            "attention metrics need a rankscope Network, whose attention matrices can be seen; "
            f"a {type(block).__name__} does not show them. Leave those metrics out."
        )
    return block.attention
