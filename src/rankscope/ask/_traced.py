"""A model that is not converted: it runs as it is, and its states are recorded by hooks."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn, TypeGuard

import torch
from torch import Tensor, nn

from rankscope.core.batches import Batch
from rankscope.core.network import Network, Spec
from rankscope.core.tracing import (
    Metrics,
    Recording,
    Sublayers,
    Trace,
    find_sublayers,
    record,
    trace,
)
from rankscope.errors import InputError, RankscopeError, ShapeError, UnsupportedModelError
from rankscope.streams import global_stream

Inputs = Tensor | Mapping[str, Any] | Sequence[Any]
_NUMBERS_AT_ONCE: Final = 2**27
"""Numbers of states and sublayers that a recording keeps."""
_PAIRS_AT_ONCE: Final = 2**25


class NoNetwork(Network):
    """Stands where a model has no network of ours: whatever is asked of it raises the reason."""

    def __init__(self, name: str, reason: RankscopeError) -> None:
        nn.Module.__init__(self)
        # What still works on the model is at work already.
        self._reason = str(reason).partition("; rankscope.trace")[0].rstrip(".")
        self.name, self._seed = name, None

    @property
    def spec(self) -> Spec:  # type: ignore[override]
        """Raises."""
        self._refuse()

    @property
    def blocks(self) -> nn.ModuleList:  # type: ignore[override]
        """Raises."""
        self._refuse()

    def forward(self, *_: Any, **__: Any) -> NoReturn:
        """Raises."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UnsupportedModelError(f"{self._reason}.")


@dataclass(frozen=True, eq=False)
class GivenInputs:
    """Inputs as ``trace`` takes them; they run at once, and samples are picked afterwards."""

    inputs: Inputs
    token_mask: Tensor | None = None

    def batches(self, batch: Batch, _size: int) -> Iterator[Batch]:
        """All samples."""
        yield batch

    def select(self, _rows: Tensor, shown: Tensor | None) -> tuple[Inputs, Tensor | None]:
        """The inputs of all samples and their token mask, or of their first tokens, ``shown``."""
        given = self.inputs
        if shown is None:
            return given, self.token_mask
        if isinstance(given, Sequence) and len(given) == 1:
            given = given[0]
        fits = isinstance(given, Tensor) and given.shape[:2] == shown.shape
        if not fits or self.token_mask is not None or bool((shown != shown[:1]).any()):
            raise InputError("its input cannot be shortened")
        assert isinstance(given, Tensor)
        return given[:, shown[0].to(given.device)], None


@dataclass(frozen=True, eq=False)
class SampledInputs:
    """Keyword arguments whose tensors have the samples first, so that they run in batches.

    ``mask_name`` is the argument for the token mask. Without one, samples of different lengths run
    one by one, without padding.
    """

    arguments: Mapping[str, Any]
    samples: int
    token_mask: Tensor | None = None
    mask_name: str = ""
    alone: bool = False
    """Whether samples run one by one, for a model that joins those of a batch."""

    def batches(self, batch: Batch, size: int) -> Iterator[Batch]:
        """Samples that run together."""
        _, x, real, counted = batch
        size = 1 if self.alone else size
        if real is None or self.mask_name or bool(real.all()):
            for start in range(0, len(x), size):
                rows = slice(start, start + size)
                masks = (mask if mask is None else mask[rows] for mask in (real, counted))
                yield Batch(start, x[rows], *masks)
            return
        for row, seen in enumerate(real):
            one = slice(row, row + 1)
            yield Batch(row, x[one, seen], None, None if counted is None else counted[one, seen])

    def select(self, rows: Tensor, shown: Tensor | None) -> tuple[Inputs, Tensor | None]:
        """The arguments of some samples and their token mask; ``shown`` are fewer tokens."""
        picked = {
            name: value[rows.to(value.device)] if _is_of(value, 0, self.samples) else value
            for name, value in self.arguments.items()
        }
        mask = None if self.token_mask is None else self.token_mask[rows.to(self.token_mask.device)]
        if mask is None:
            if shown is not None:
                raise InputError("its input cannot be shortened")
            return picked, None
        if self.mask_name:
            seen = mask if shown is None else shown.to(mask.device)
            return {**picked, self.mask_name: seen.to(picked[self.mask_name])}, seen
        kept = mask[0]
        if shown is not None:
            if bool((shown != shown[:1]).any()):
                raise InputError("its texts differ in length, and it takes no mask")
            kept = torch.zeros_like(kept)
            kept[mask[0].nonzero().squeeze(-1)[shown[0].to(kept.device)]] = True
        tokens = mask.shape[1]
        return {
            name: value[:, kept.to(value.device)] if _is_of(value, 1, tokens) else value
            for name, value in picked.items()
        }, None


def _without_mask(inputs: GivenInputs | SampledInputs) -> SampledInputs | None:
    """The same samples without their mask, for a model that merges tokens; None with padding."""
    if isinstance(inputs, GivenInputs) or inputs.token_mask is None:
        return None
    if not bool(inputs.token_mask.all()):
        return None
    rest = {name: value for name, value in inputs.arguments.items() if name != inputs.mask_name}
    return SampledInputs(rest, inputs.samples)


def _as_run(inputs: SampledInputs, learnt: Recording) -> SampledInputs:
    """The same inputs without a token mask, if the model adds tokens of its own to them."""
    mask = inputs.token_mask
    if mask is None:
        return inputs
    tokens = learnt.trimmed(mask.shape[1]).states[0].shape[1]
    if tokens == (mask.shape[1] if inputs.mask_name else int(mask[0].sum())):
        return inputs
    if not bool(mask.all()):
        raise InputError(
            f"the first block takes {tokens} tokens for {mask.shape[1]} in the input, and it is "
            "not known which of them are padding; give samples of one length."
        )
    return replace(inputs, token_mask=None, mask_name="")


def _is_of(value: object, axis: int, size: int) -> TypeGuard[Tensor]:
    """Whether a value is a tensor with one entry for each sample, or each token."""
    return isinstance(value, Tensor) and value.ndim > axis and value.shape[axis] == size


@dataclass(frozen=True, eq=False)
class Traced:
    """A model and its inputs, of which some samples (``rows``) are looked at.

    ``sublayers`` are those of its blocks that the numbers confirm; ``stack`` are the blocks in the
    order they run.
    """

    model: nn.Module
    inputs: GivenInputs | SampledInputs
    rows: Tensor
    sublayers: Sublayers
    stack: Sequence[nn.Module]
    heads: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of ``trace``: ``blocks``, ``layout``, ``stream``, ``output``."""

    @classmethod
    def prepared(
        cls,
        model: nn.Module,
        inputs: GivenInputs | SampledInputs,
        *,
        options: Mapping[str, Any] | None = None,
        sublayers: Sublayers | None = None,
    ) -> tuple["Traced", Tensor, Tensor | None]:
        """A model and its inputs, the states before its first block, and which tokens are real.

        ``sublayers`` are looked for unless they are known from a model of the same classes.
        """
        options = options or {}
        given, mask = inputs.select(torch.arange(1), None)
        try:
            learnt = record(model, given, token_mask=mask, **options)
        except ShapeError:
            if mask is None or (whole := _without_mask(inputs)) is None:
                raise
            return cls.prepared(model, whole, options=options, sublayers=sublayers)
        except RankscopeError:
            raise
        except Exception as error:  # whatever a foreign forward pass raises
            raise InputError(
                f"{type(model).__name__} does not run on this input ({type(error).__name__}: "
                f"{error}); give the arguments that its forward pass takes."
            ) from error
        attention = (learnt.attention(layer)[0] for layer in range(1, len(learnt.states)))
        heads = [scores.shape[1] for scores in attention if scores is not None]
        traced = cls(
            model,
            inputs,
            torch.arange(
                inputs.samples if isinstance(inputs, SampledInputs) else len(learnt.states[0])
            ),
            find_sublayers(learnt) if sublayers is None else sublayers,
            tuple(layer.block for layer in learnt.layers),
            max(heads, default=1),
            options,
        )
        if isinstance(inputs, GivenInputs):
            return traced, learnt.states[0], learnt.masks[0]
        traced = replace(traced, inputs=_as_run(inputs, learnt))
        return traced._first_states(learnt.states[0])

    def _first_states(self, example: Tensor) -> tuple["Traced", Tensor, Tensor | None]:
        """The states of all samples before the first block, in the shape of the first one's."""
        inputs = self.inputs
        assert isinstance(inputs, SampledInputs)
        mask, tokens = inputs.token_mask, example.shape[1]
        tokens = tokens if mask is None else mask.shape[1]
        x = example.new_zeros(inputs.samples, tokens, example.shape[2])
        for batch in self.batches(Batch(0, x, mask, None), 8):
            state = self.record(batch, states_only=True).states[0]
            if len(state) != len(batch.x) and not inputs.alone:
                return replace(self, inputs=replace(inputs, alone=True))._first_states(example)
            rows = slice(batch.start, batch.start + len(state))
            kept: slice | Tensor = slice(0, tokens)
            if mask is not None and state.shape[1] < tokens:
                kept = mask[batch.start]
            x[rows, kept] = state
        return self, x, mask

    @property
    def parts(self) -> tuple[str, ...]:
        """What its blocks are made of; ``block`` where no sublayers are confirmed."""
        seen = {sublayer.part for steps in self.sublayers.values() for sublayer in steps}
        return (*(part for part in ("attention", "mixer", "MLP", "norm") if part in seen), "block")

    def of_samples(self, some: Tensor) -> "Traced":
        """Some of the samples."""
        return replace(self, rows=self.rows[some.to(self.rows.device)])

    def batches(self, batch: Batch, size: int) -> Iterator[Batch]:
        """Samples as they run together; ``batch.x`` are their states before the first block."""
        start, x, *masks = batch
        full = (None if mask is None else mask.expand(x.shape[:2]) for mask in masks)
        numbers = 4 * len(self.stack) * x.shape[1] * x.shape[2]
        pairs = self.heads * x.shape[1] ** 2
        size = max(1, min(size, _NUMBERS_AT_ONCE // numbers, _PAIRS_AT_ONCE // pairs))
        return self.inputs.batches(Batch(start, x, *full), size)

    def record(
        self, batch: Batch, *, shown: Tensor | None = None, states_only: bool = False
    ) -> Recording:
        """Run the samples of a batch; ``shown`` are fewer of its tokens, the first ones."""
        rows = self.rows[batch.start : batch.start + len(batch.x)]
        given, mask = self.inputs.select(rows, shown)
        sublayers = {} if states_only else self.sublayers
        recording = record(self.model, given, token_mask=mask, sublayers=sublayers, **self.options)
        if mask is not None:
            recording = recording.trimmed(mask.shape[1])
        picked = isinstance(self.inputs, GivenInputs) and len(recording.states[0]) != len(rows)
        return recording.of_samples(rows.to(recording.states[0].device)) if picked else recording

    def trace(self, batch: Batch, metrics: Metrics) -> Trace:
        """``rankscope.trace`` of the samples of a batch."""
        rows = self.rows[batch.start : batch.start + len(batch.x)]
        given, mask = self.inputs.select(rows, None)
        return trace(
            self.model,
            given,
            metrics=metrics,
            token_mask=mask,
            measured=batch.measured,
            **self.options,
        )


def drawn_anew(model: nn.Module, seed: int) -> nn.Module:
    """A copy of a module with freshly initialised weights, by its own ``reset_parameters``.

    Raises if some parameter belongs to a module that has none.
    """
    drawn = copy.deepcopy(model)
    resets: list[Callable[[], object]] = []  # parents first
    for path, module in drawn.named_modules():
        reset = getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))
        if callable(reset):
            resets.append(reset)
            continue
        for name, _ in module.named_parameters(recurse=False):
            raise UnsupportedModelError(
                f"{type(module).__name__} has no reset_parameters() that would draw "
                f"{f'{path}.{name}' if path else name} again."
            )
    with global_stream(seed, "original"), torch.no_grad():
        for reset in reversed(resets):
            reset()
    return drawn.eval()
