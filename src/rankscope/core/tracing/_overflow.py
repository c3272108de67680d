"""Queries and keys that overflow while a model runs, found where they would pass for collapse."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    linear,
    multi_head_attention_forward,
    scaled_dot_product_attention,
)
from torch.overrides import TorchFunctionMode

from rankscope.core.metrics import GatheredPeaks
from rankscope.core.tracing._attention_interface import heard_calls
from rankscope.core.tracing._attention_reading import Call
from rankscope.core.tracing._figures import Fault
from rankscope.errors import InputError

_SIGNATURE = signature(multi_head_attention_forward)


class _Seen(NamedTuple):
    """One attention whose queries and keys were looked at."""

    layer: int
    dtype: torch.dtype
    factor: float
    """What a score is at most, in units of the product of their largest entries."""


class OverflowWatch(TorchFunctionMode):
    """Looks at what PyTorch's fused attention is given in this thread while a block runs.

    The kernel gives zeros for rows whose scores are all NaN or all -∞, so that queries or keys
    that overflow would read as tokens that are all alike; every other operation hands NaN on, and
    the metrics refuse it. Few numbers are kept of each call, and none is waited for before
    ``fault``. Where ``all_heard``, all attention goes through Transformers' interface; else
    every operation of a block is looked at, which takes each of them a little longer.
    """

    def __init__(self, *, all_heard: bool) -> None:
        super().__init__()
        self._layer: int | None = None
        self._entered = False
        self._seen: list[_Seen] = []
        self._peaks = GatheredPeaks()
        self._all_heard = all_heard

    def listening(self) -> AbstractContextManager[None]:
        """Hear Transformers' attention for the time of the context, if that is all there is."""
        return heard_calls(self._hear) if self._all_heard else nullcontext()

    def begin(self, block: nn.Module, layer: int) -> None:
        """Watch from here on."""
        self._layer = layer
        if not self._all_heard and not any(map(_has_a_fast_path, block.modules())):
            self._entered = True
            self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Watch no longer, whether or not anything was watched."""
        self._layer = None
        if self._entered:
            self._entered = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is scaled_dot_product_attention:
            self._look(*args, **(kwargs or {}))
        elif func is multi_head_attention_forward:
            self._look(*_projected(*args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))

    def _hear(self, call: Call) -> None:
        if call.implementation != "eager":  # which hands NaN on
            self._look(call.query, call.key, scale=call.option("scaling"))

    def _look(
        self, query: Tensor, key: Tensor, *_: Any, scale: float | None = None, **__: Any
    ) -> None:
        if self._layer is None or query.is_nested or not query.numel() or not key.numel():
            return
        width = query.shape[-1]
        factor = width * (width**-0.5 if scale is None else abs(float(scale)))
        self._peaks.add(query, key)
        self._seen.append(_Seen(self._layer, query.dtype, factor))

    def send(self) -> None:
        """Let what was seen come to the host, while other things are done."""
        self._peaks.send()

    def fault(self) -> Fault | None:
        """What is wrong in the first layer whose queries or keys are no numbers, or so large that
        their products may not be; this waits for the device."""
        faults = [
            Fault(one.layer, _error(one, query, key))
            for one, (query, key) in zip(self._seen, self._peaks.finish(), strict=True)
            if not _fits(one, query, key)
        ]
        return min(faults, key=lambda fault: fault.layer, default=None)


def _projected(*args: Any, **kwargs: Any) -> list[Tensor]:
    """Queries and keys by head, as PyTorch's attention finds them inside itself, out of sight."""
    given = _SIGNATURE.bind(*args, **kwargs).arguments
    bias = given["in_proj_bias"]
    if given.get("use_separate_proj_weight", False):  # the packed ones may be None or empty then
        weights = (given["q_proj_weight"], given["k_proj_weight"])
    else:
        weights = given["in_proj_weight"].chunk(3)[:2]
    biases = (None, None) if bias is None else bias.chunk(3)[:2]
    return [
        linear(x, weight, shift).unflatten(-1, (given["num_heads"], -1))
        for x, weight, shift in zip((given["query"], given["key"]), weights, biases, strict=True)
    ]


def _has_a_fast_path(module: nn.Module) -> bool:
    """Whether this is PyTorch's attention, in a form it runs as one operation if nobody watches.

    That operation hands NaN on, so there is nothing to watch for.
    """
    if not isinstance(module, nn.MultiheadAttention):
        return False
    fits = module.batch_first and module.num_heads % 2 == 0 and module.in_proj_weight is not None
    return fits and torch.backends.mha.get_fastpath_enabled()


def _fits(seen: _Seen, query: float, key: float) -> bool:
    double = seen.dtype == torch.float64
    most = torch.finfo(torch.float64 if double else torch.float32).max  # what kernels add up in
    return query * key * seen.factor <= most


def _error(seen: _Seen, query: float, key: float) -> InputError:
    broken = [name for name, each in (("queries", query), ("keys", key)) if not each < torch.inf]
    what = " and ".join(broken) or "products of queries and keys"
    dtype = str(seen.dtype).removeprefix("torch.")
    return InputError(
        f"layer {seen.layer}: {what} overflow {dtype} (the largest "
        f"query entry is {query:.3g}, the largest key entry {key:.3g}), and fused attention would "
        "give zeros for them; use a wider dtype, or look where training broke down."
    )
