"""Forward hooks that turn each layer's output into numbers and keep nothing else."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.checks import measured_tokens
from rankscope.errors import InputError, RankscopeError, ShapeError
from rankscope.metrics import deviations, spectra
from rankscope.network import Attention, Block
from rankscope.tracing._measures import Measure

Columns = dict[str, list[Any]]
_USUAL_NAMES = ("hidden_states", "last_hidden_state", "x", "src", "input")

_FOUND_ONCE: dict[str, Callable[..., Any]] = {"deviation": deviations, "spectrum": spectra}
"""What several metrics are functions of, found once per layer for all of them."""


class Recorder:
    """Counts the calls of the blocks, in the order they run, and measures each result.

    Counting calls rather than modules makes a block that is used several times, as in ALBERT,
    several layers. Layer 0 is the input of the first block.
    """

    def __init__(
        self,
        measures: Sequence[Measure],
        token_mask: Tensor | None,
        *,
        measured: Tensor | None = None,
        token_first: bool,
    ) -> None:
        self._states = [measure for measure in measures if measure.of != "attention"]
        self._attention = [measure for measure in measures if measure.of == "attention"]
        self._token_mask = token_mask
        self._measured = measured
        self._token_first = token_first
        self._layer = -1
        self._samples = 0
        self._rows: list[tuple[int, str, Tensor]] = []

    @contextmanager
    def watching(self, blocks: Sequence[nn.Module]) -> Iterator[None]:
        """Hooks on all blocks while the context lasts; none is left behind, whatever happens."""
        handles = []
        try:
            for block in dict.fromkeys(blocks):
                handles.append(block.register_forward_pre_hook(self._before, with_kwargs=True))
                handles.append(block.register_forward_hook(self._after))
                if self._attention:
                    handles.append(_attention(block).register_forward_pre_hook(self._attend))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def columns(self) -> Columns:
        """Everything recorded, one list per column; ``head`` only if attention was measured."""
        if self._layer < 1:
            raise InputError("the forward pass ran none of the blocks; are they the model's own?")
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

    def _before(self, _block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._layer < 0:
            self._layer = 0
            self._measure(first_tensor((*args, kwargs)))
        self._layer += 1

    def _after(self, _block: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        self._measure(first_tensor(output))

    def _attend(self, attention: Attention, args: tuple[Any, ...]) -> None:
        pattern = attention.pattern(*args)
        for measure in self._attention:
            compute = partial(measure.compute, token_mask=self._on(pattern, self._token_mask))
            self._keep(measure, self._apply(measure.name, compute, pattern))

    def _measure(self, hidden: Tensor) -> None:
        if self._token_first and hidden.ndim == 3:
            hidden = hidden.transpose(0, 1)
        if hidden.ndim == 2:
            hidden = hidden.unsqueeze(0)
        if hidden.ndim != 3:
            raise ShapeError(
                f"layer {self._layer} has shape {tuple(hidden.shape)}, expected "
                "(batch, token, feature); name blocks that work on sequences."
            )
        self._samples = hidden.shape[0]
        measured = self._fit_mask(hidden)
        found: dict[str, Any] = {}
        for measure in self._states:
            if measure.of in _FOUND_ONCE and measure.of not in found:
                prepare = partial(_FOUND_ONCE[measure.of], token_mask=measured)
                found[measure.of] = self._apply(measure.name, prepare, hidden)
            if measure.of in found:
                value = self._apply(measure.name, measure.compute, found[measure.of])
            else:
                compute = partial(measure.compute, token_mask=measured)
                value = self._apply(measure.name, compute, hidden)
            self._keep(measure, value)

    def _apply(self, name: str, compute: Callable[[Any], Any], tensor: Any) -> Any:
        try:
            return compute(tensor)
        except RankscopeError as error:
            raise type(error)(f"layer {self._layer}, {name}: {error}") from error

    def _fit_mask(self, hidden: Tensor) -> Tensor | None:
        """The mask of the tokens to measure, as wide as the hidden states.

        PyTorch's nested fast path cuts a batch to its longest sequence; what it cut was padding.
        """
        mask, width = self._on(hidden, self._token_mask), hidden.shape[1]
        if mask is not None and mask.shape[-1] > width and not mask[..., width:].any():
            mask = mask[..., :width]
        return measured_tokens(self._on(hidden, self._measured), mask, tuple(hidden.shape[:2]))

    @staticmethod
    def _on(tensor: Tensor, mask: Tensor | None) -> Tensor | None:
        """A mask where the tensor lives: layers may be spread over devices."""
        return None if mask is None else mask.to(tensor.device)

    def _keep(self, measure: Measure, value: Tensor) -> None:
        axes = 2 if measure.of == "attention" else 1
        fits = isinstance(value, Tensor) and value.ndim == axes and value.shape[0] == self._samples
        if not fits:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ShapeError(
                f"metric {measure.name!r} gave {got} for {self._samples} samples; "
                "it must give a tensor with one number for each."
            )
        # A copy: a view would keep a whole layer alive.
        self._rows.append((self._layer, measure.name, value.detach().clone()))


def _attention(block: nn.Module) -> Attention:
    if not isinstance(block, Block):
        raise InputError(
            "attention metrics need a rankscope Network, whose attention matrices can be seen; "
            f"a {type(block).__name__} does not show them. Leave those metrics out."
        )
    return block.attention


def first_tensor(value: Any) -> Tensor:
    """The hidden states among what a block takes or gives: a tensor, or the first one inside."""
    if isinstance(value, Tensor):
        dense: Tensor = torch.nested.to_padded_tensor(value, 0.0) if value.is_nested else value
        return dense
    inner: Sequence[Any] = ()
    if isinstance(value, Mapping):
        usual = [value[name] for name in _USUAL_NAMES if name in value]
        inner = [*usual, *value.values()]
    elif isinstance(value, Sequence) and not isinstance(value, str):
        inner = value
    found = [tensor for one in inner for tensor in _real_tensors(one)]
    if found:
        # Hidden states have three axes; whatever else a block passes along mostly has not.
        return next((tensor for tensor in found if tensor.ndim == 3), found[0])
    raise InputError(
        f"a block exchanged {type(value).__name__} with no real tensor in it; "
        "name blocks that take and give hidden states."
    )


def _real_tensors(value: Any) -> list[Tensor]:
    """The real tensor a value is, or holds."""
    if isinstance(value, Tensor) and not value.is_floating_point():
        return []
    if isinstance(value, str) or not isinstance(value, Tensor | Mapping | Sequence):
        return []
    try:
        return [first_tensor(value)]
    except InputError:
        return []
