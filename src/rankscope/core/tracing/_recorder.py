"""Hooks that measure each layer while the model runs, in the order in which the blocks run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from rankscope.core.metrics import AttentionScores
from rankscope.core.network import Attention, Block
from rankscope.core.tracing import _hidden_states as hidden_states
from rankscope.core.tracing._attention import AttentionWatch, OverflowWatch
from rankscope.core.tracing._attention_reading import network_scores
from rankscope.core.tracing._blocks import NONE_RAN
from rankscope.core.tracing._figures import Columns, Figures
from rankscope.core.tracing._layouts import LayoutChoice
from rankscope.core.tracing._masks import TokenChoice
from rankscope.core.tracing._temporary_changes import TemporaryChanges
from rankscope.errors import InputError, ShapeError

_ONE_PASS = "trace one plain forward pass (no generate(), no micro-batches)"


class Calls:
    """Counts the calls of the blocks and checks that each is the next layer.

    A block may run as often as it is in the stack. If it runs more often, like the single block of
    ALBERT, each run must start from the output of the run before: then they are layers of one pass.
    """

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        self._blocks = list(blocks)
        self._meant = Counter(map(id, blocks))
        self._ran: list[nn.Module] = []
        self._runs: Counter[int] = Counter()
        self._running: nn.Module | None = None
        self._last: Tensor | None = None
        self._samples: int | None = None

    @property
    def layer(self) -> int:
        """The number of the block that runs or ran last; 0 before the first."""
        return len(self._ran)

    @property
    def is_running(self) -> bool:
        """Whether a block is running now."""
        return self._running is not None

    def refuse_nested(self, block: nn.Module) -> None:
        """Raise if a block starts while another runs."""
        if self._running is not None:
            raise InputError(
                f"{self._name(block)} runs inside {self._name(self._running)}, so they are not "
                "consecutive layers; name blocks that are: blocks=[...]."
            )

    def enter(self, block: nn.Module, hidden: Tensor | None) -> None:
        """Register that a block starts; None: on nothing computed from the last hidden states."""
        again = self._runs[id(block)] >= self._meant[id(block)]
        last = self._last
        if again and (last is None or hidden is None or not hidden_states.is_same(last, hidden)):
            raise InputError(
                f"{self._name(block)} ran again, but not on the output of the previous block: "
                f"{_ONE_PASS}; or, if these are layers of the model, name every run: "
                "blocks=[first, second, first, second]."
            )
        if hidden is None:
            raise InputError(
                f"{self._name(block)} takes nothing that was computed from the hidden states of "
                "the previous block: they run in parallel, like branches and experts, or another "
                "tensor of the output is passed on. Name blocks that run one after another, "
                "blocks=[...], or the tensor that is passed on, output=..."
            )
        self._last = None
        self._running = block
        self._ran.append(block)
        self._runs[id(block)] += 1

    def leave(self, hidden: Tensor) -> None:
        """Register the hidden states that the running block returns."""
        self._running, self._last = None, hidden

    def check_samples(self, samples: int) -> None:
        """Raise unless every layer has the same number of samples."""
        if self._samples is None:
            self._samples = samples
        if samples != self._samples:
            raise InputError(
                f"layer {self.layer} has {samples} samples, earlier layers have {self._samples}; "
                f"{_ONE_PASS}."
            )

    def finish(self, *, elsewhere: int) -> str:
        """Raise unless every block ran; return the number and order of runs if they are unusual."""
        self._last = None
        if not self._ran:
            if elsewhere:
                raise InputError(
                    "the blocks ran in other threads, as in DataParallel on several devices; trace "
                    "the inner model: trace(model.module, ...)."
                )
            raise InputError(NONE_RAN)
        for block in self._blocks:
            runs, meant = self._runs[id(block)], self._meant[id(block)]
            if runs < meant:
                often = f"ran {runs} times, not {meant}" if runs else "did not run"
                raise InputError(
                    f"{self._name(block)} {often} in this forward pass: it is skipped or replaced, "
                    "and later layers would be misnumbered; name the blocks that run: blocks=[...]."
                )
        if len(self._ran) > len(self._blocks):
            return f"{len(self._blocks)} blocks ran {len(self._ran)} times, one after another"
        if [id(block) for block in self._ran] != [id(block) for block in self._blocks]:
            order = ", ".join(str(self._number(block)) for block in self._ran)
            return f"in the order they ran: {order}"
        return ""

    def _name(self, block: nn.Module) -> str:
        return f"block {self._number(block)} ({type(block).__name__}) of {len(self._blocks)}"

    def _number(self, block: nn.Module) -> int:
        return 1 + next(k for k, other in enumerate(self._blocks) if other is block)


class Recorder:
    """Measures the output of each block in the order they run; layer 0 is the first block's input.

    The layout, the tensor with the hidden states and the real tokens, if unknown beforehand, are
    inferred while the model runs.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        blocks: Sequence[nn.Module],
        figures: Figures,
        *,
        layout: LayoutChoice,
        stream: hidden_states.StreamChoice,
        output: hidden_states.OutputChoice,
        tokens: TokenChoice,
        is_heard: bool,
        verified: set[Any],
    ) -> None:
        self._blocks, self._figures = list(blocks), figures
        self._layout, self._stream, self._output, self._tokens = layout, stream, output, tokens
        self._is_ours = all(isinstance(block, Block) for block in blocks)
        self._attention: AttentionWatch | None = None
        if figures.of_attention and not self._is_ours:
            self._attention = AttentionWatch(self._heard, modules, verified)
        self._heard_in: Counter[int] = Counter()  # attentions of each layer
        self._overflow = OverflowWatch(is_heard=is_heard)
        self._calls = Calls(blocks)
        self._input_shape = torch.Size()  # of the input of the running block
        self._first_shape = torch.Size()  # of layer 0
        self._shapes: dict[torch.Size, int] = {}  # tokens and features, and their first layer
        self._firsts: dict[hidden_states.Key, Tensor] = {}  # candidates for layer 0
        self._previous: hidden_states.Candidate | None = None  # the output of the previous block
        self._open: hidden_states.OpenChoice | None = None  # several tensors, while undecided
        self._flow = hidden_states.Flow()

    def listen(self, changes: TemporaryChanges) -> None:
        """Register hooks on all blocks."""
        changes.undo_later(self._layout.end)  # both begin in hooks, while the model runs
        changes.undo_later(self._flow.end)
        self._overflow.listen(changes)
        blocks = list(dict.fromkeys(self._blocks))
        changes.around(blocks, before=self._before, after=self._after)
        if self._figures.of_attention and self._is_ours:
            parts = [cast(Block, block).attention for block in blocks]
            changes.around(parts, before=self._attend)
        for part in self._layout.parts:
            changes.before(part, self._look_at_part)
        if self._attention is not None:
            self._attention.listen(changes)

    @property
    def token_first(self) -> bool:
        """Whether hidden states of the model are (token, batch, feature)."""
        return bool(self._layout.token_first)

    def stop(self) -> None:
        """Stop following operations after the model has run."""
        self._flow.end()

    def finish(self, *, elsewhere: int) -> dict[str, str]:
        """What was inferred, after the model has run; raises if a block did not run, or ran
        ``elsewhere``, in other threads."""
        self._close(None)
        if self._firsts and self._previous is not None:
            self._stream.end(self._previous.tensor.shape)
            self._measure_first()
        self._previous = None
        self._overflow.send()
        self._figures.send()
        decided = {"layout": self._layout.words, "tensor": self._output.words}
        decided["stream"] = self._stream.words
        decided["order"] = self._calls.finish(elsewhere=elsewhere)
        if len(self._shapes) > 1:
            decided["shape"] = ", ".join(
                f"{tokens} tokens of {features} features from layer {layer} on"
                for (tokens, features), layer in self._shapes.items()
            )
        decided |= self._figures.words
        if self._attention is not None:
            self._check_heard(self._attention)
        return {name: words for name, words in (decided | self._tokens.words).items() if words}

    def columns(self) -> Columns:
        """All figures; this synchronises with the device, and raises for the first layer with a
        fault: that of queries and keys before that of the states computed from them."""
        overflow = self._overflow.fault()
        columns, fault = self._figures.finish()
        faults = [entry for entry in (overflow, fault) if entry is not None]
        if faults:
            raise InputError(min(faults, key=lambda fault: fault.layer).words)
        if self._attention is not None:
            self._attention.judge()
        return columns

    def _before(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._calls.refuse_nested(block)
        self._flow.end()
        is_first = self._calls.layer == 0
        hidden = (self._begin if is_first else self._go_on)(block, args, kwargs)
        self._calls.enter(block, hidden)
        self._overflow.begin(block, self._calls.layer)

    def _begin(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The first block: its input is layer 0, if the tensor and the layout are known."""
        rivals = self._stream.begin(block, hidden_states.BlockArguments(block, args, kwargs))
        hidden = rivals[0].tensor
        _refuse_mapped(hidden, 0)
        if self._stream.key is not None:
            self._first_shape = self._input_shape = hidden.shape
            self._layout.look_at_state(hidden)
        if self._stream.key is not None and self._layout.token_first is not None:
            self._measure(hidden, 0)
        else:  # copies: the block may work in place
            self._firsts = {rival.key: rival.tensor.clone() for rival in rivals}
            self._layout.look_at_operations(rival.raw for rival in rivals)
        return hidden

    def _go_on(
        self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tensor | None:
        """A later block: it takes the output of the previous one, or something computed from it."""
        previous = self._previous
        usual = self._open is None and self._stream.key in ((0,), (0, 0))
        if usual and previous is not None and args and args[0] is previous.raw:  # in most models
            self._input_shape = previous.tensor.shape
            return previous.tensor
        taken = hidden_states.BlockArguments(block, args, kwargs)
        self._close([argument.tensor for argument in taken.tensors])
        assert self._previous is not None
        hidden = self._stream.go_on(taken, self._previous, self._flow)
        if hidden is None:
            return None
        if self._firsts:
            self._measure_first()
        self._input_shape = hidden.tensor.shape
        return hidden.tensor

    def _after(self, _block: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        self._overflow.end()
        self._layout.end()
        candidate = self._output.immediate(output)
        if candidate is None:
            self._open = hidden_states.OpenChoice(output, self._input_shape)
            self._calls.leave(self._open.candidates[0].tensor)
            self._flow.follow(rival.raw for rival in self._open.candidates)
        else:
            self._leave(candidate, candidate.tensor)
            self._flow.follow(self._output.going_on(output, candidate))

    def _leave(self, candidate: hidden_states.Candidate, hidden: Tensor) -> None:
        """Register the output of the running block; ``hidden`` is its value at that time."""
        self._previous = candidate
        self._calls.leave(candidate.tensor)
        if self._layout.token_first is None:
            firsts = list(self._firsts.values())
            self._layout.settle(firsts[0] if len(firsts) == 1 else hidden)
        if self._stream.key is not None and self._firsts:
            self._measure_first()
        self._measure(hidden, self._calls.layer)

    def _look_at_part(self, part: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        if self._calls.layer == 1 and self._calls.is_running:
            query = args[0] if args else named.get("query", named.get("input"))
            firsts = list(self._firsts.values())
            self._layout.look_at_part(part, query, firsts[0] if len(firsts) == 1 else None)

    def _measure_first(self) -> None:
        assert self._stream.key is not None
        first, self._firsts = self._firsts[self._stream.key], {}
        self._first_shape = first.shape
        self._measure(first, 0)

    def _close(self, taken: Sequence[Tensor] | None) -> None:
        """Choose the output of the previous block, now that the input of the next one is known."""
        if self._open is not None:
            open_, self._open = self._open, None
            candidate = self._output.among(open_, taken, self._first_shape)
            self._leave(candidate, open_.as_made(candidate))

    def _attend(self, attention: Attention, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        x, visibility = args
        scores = network_scores(attention, x, visibility, self._tokens.keys(x.shape[1], x.device))
        self._figures.attend(scores, self._calls.layer)

    def _heard(self, _attention: nn.Module, scores: AttentionScores) -> None:
        """Attention of another model, from Transformers' interface."""
        if not self._calls.is_running:
            return
        self._heard_in[self._calls.layer] += 1
        mask = self._tokens.keys(scores.key.shape[2], scores.key.device)
        self._figures.attend(replace(scores, token_mask=mask), self._calls.layer)

    def _check_heard(self, attention: AttentionWatch) -> None:
        if not self._heard_in:
            raise attention.unheard()
        for layer in range(1, self._calls.layer + 1):
            if self._heard_in[layer] != 1:
                raise InputError(
                    f"layer {layer} has {self._heard_in[layer]} attention calls that can be read, "
                    "and attention metrics need exactly one per layer; omit them, or name blocks "
                    "that have one each: blocks=[...]."
                )

    def _measure(self, hidden: Tensor, layer: int) -> None:
        _refuse_mapped(hidden, layer)
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
            raise ShapeError(f"layer {layer} has shape {tuple(hidden.shape)}: it has no tokens.")
        self._figures.measure(hidden, layer, self._tokens.measured(hidden))


def _refuse_mapped(hidden: Tensor, layer: int) -> None:
    if is_functorch_wrapped_tensor(hidden):
        raise InputError(
            f"layer {layer} runs inside torch.vmap, which hides the batch; trace the model on the "
            "whole batch, without vmap around its blocks."
        )
