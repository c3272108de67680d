"""Forward hooks that have each layer measured as it comes by, and keep nothing of it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from rankscope.core.metrics import AttentionScores
from rankscope.core.network import Attention, Block
from rankscope.core.tracing._attention_interface import AttentionWatch, unjudged_attention, unseen
from rankscope.core.tracing._calls import Calls
from rankscope.core.tracing._figures import Columns as Columns
from rankscope.core.tracing._figures import Figures, SpectraBy
from rankscope.core.tracing._hooks import each_once, thread_hooks
from rankscope.core.tracing._layout import LayoutChoice
from rankscope.core.tracing._measures import Measure
from rankscope.core.tracing._network_attention import network_scores
from rankscope.core.tracing._outputs import OpenChoice, OutputChoice
from rankscope.core.tracing._overflow import OverflowWatch
from rankscope.core.tracing._tensors import first_tensor, real_tensors
from rankscope.core.tracing._tokens import TokenChoice
from rankscope.errors import InputError, ShapeError


class Recorder:
    """Measures what each block makes, in the order they run; layer 0 is the first block's input.

    What is not known of the model beforehand (its layout, which tensor is meant, which tokens are
    real) is decided while it runs, by the choices it is given.
    """

    def __init__(
        self,
        model: nn.Module,
        measures: Sequence[Measure],
        blocks: Sequence[nn.Module],
        *,
        layout: LayoutChoice,
        output: OutputChoice,
        tokens: TokenChoice,
        all_heard: bool,
        spectra_by: SpectraBy = "auto",
    ) -> None:
        self._model, self._blocks = model, list(blocks)
        self._is_ours = all(isinstance(block, Block) for block in blocks)
        self._figures = Figures(measures, len(blocks) + 1, spectra_by=spectra_by)
        self._heard_in: Counter[int] = Counter()  # attentions of each layer
        self._watch: AttentionWatch | None = None
        self._calls = Calls(blocks)
        self._layout, self._output, self._tokens = layout, output, tokens
        self._input_shape = torch.Size()  # of what the running block was given
        self._first_shape = torch.Size()  # of layer 0
        self._shapes: dict[torch.Size, int] = {}  # tokens and features, and the layer from which
        self._first: Tensor | None = None  # layer 0, while its layout is not known
        self._open: OpenChoice | None = None  # an output of several tensors, while undecided
        self._overflow = OverflowWatch(all_heard=all_heard)
        self.words: dict[str, str] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Hooks on all blocks while the context lasts; none is left behind, whatever happens."""
        with thread_hooks() as hooks, ExitStack() as leaving:
            leaving.callback(self._overflow.end)
            leaving.enter_context(self._overflow.listening())
            for block in each_once(self._blocks):
                hooks.before(block, self._before)
                hooks.after(block, self._after)
            for attention in self._layout.attentions:
                hooks.before(attention, self._look_at_query)
            if self._figures.of_attention and self._is_ours:
                for block in each_once(self._blocks):
                    hooks.before(cast(Block, block).attention, self._attend)
            elif self._figures.of_attention:
                self._watch = leaving.enter_context(unjudged_attention(self._heard, self._model))
            yield
            self._close(None)
            self._overflow.send()
            self._figures.send()
            order = self._calls.finish(elsewhere=hooks.elsewhere)
            decided = {"layout": self._layout.words, "tensor": self._output.words, "order": order}
            decided |= {"shape": self._shape_words(), "spectra": self._figures.words}
            self.words = {**decided, **self._tokens.words}
            if self._figures.of_attention and not self._is_ours:
                self._check_heard()

    def columns(self) -> Columns:
        """Everything recorded; this waits for the device, and raises for the first layer in which
        something is wrong: queries and keys before what they lead to."""
        overflow = self._overflow.fault()
        columns, fault = self._figures.finish()
        faults = [each for each in (overflow, fault) if each is not None]
        if faults:
            raise min(faults, key=lambda each: each.layer).error
        if self._watch is not None:
            self._watch.judge()
        return columns

    def _before(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = self._calls.handed_on(args)
        if hidden is None or self._open is not None:
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
        changes = [
            f"{tokens} tokens of {features} features from layer {layer} on"
            for (tokens, features), layer in self._shapes.items()
        ]
        return ", ".join(changes) if len(changes) > 1 else ""

    def _attend(self, attention: Attention, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        x, visibility = args
        scores = network_scores(attention, x, visibility, self._tokens.keys(x.shape[1], x.device))
        self._figures.attend(scores, self._calls.layer)

    def _heard(self, _attention: nn.Module, scores: AttentionScores) -> None:
        """Attention of a model that is not ours, through Transformers' interface."""
        if not self._calls.is_running:
            return
        self._heard_in[self._calls.layer] += 1
        mask = self._tokens.keys(scores.key.shape[2], scores.key.device)
        self._figures.attend(replace(scores, token_mask=mask), self._calls.layer)

    def _check_heard(self) -> None:
        if not self._heard_in:
            raise unseen(self._model)
        for layer in range(1, self._calls.layer + 1):
            if self._heard_in[layer] != 1:
                raise InputError(
                    f"layer {layer} attended {self._heard_in[layer]} times, as far as can be seen, "
                    "and metrics of attention are of one attention a layer; leave them out, or "
                    "name blocks that have one each: blocks=[...]."
                )

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
        self._shapes.setdefault(hidden.shape[1:], layer)
        self._calls.check_samples(hidden.shape[0])
        if 0 in hidden.shape:
            raise ShapeError(f"layer {layer} has shape {tuple(hidden.shape)}: there is no token.")
        self._figures.measure(hidden, layer, self._tokens.measured(hidden))
