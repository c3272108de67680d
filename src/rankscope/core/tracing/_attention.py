"""Attention of any model while it runs, from Transformers' interface, and checks for overflow."""

import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.nn.functional import linear, multi_head_attention_forward, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from rankscope.core.metrics import AttentionScores, GatheredPeaks
from rankscope.core.tracing._attention_reading import Call, mismatch, read
from rankscope.core.tracing._figures import LayerFault, own_precision
from rankscope.core.tracing._temporary_changes import TemporaryChanges, hold, release
from rankscope.errors import ModelError

OnAttention = Callable[[nn.Module, AttentionScores], None]

_FROM_ELSEWHERE = ("key_value_states", "encoder_hidden_states")
"""Arguments of attention modules that hold the tokens of another sequence."""
_FUSED = ("scaled_dot_product_attention", "multi_head_attention_forward")
"""PyTorch's fused attention, by itself and with the projections around it."""
SIGNATURE = inspect.signature(multi_head_attention_forward)


# Hooks on Transformers' attention interface.


_here = threading.local()
_originals: list[Any] = []
"""The original ``AttentionInterface.get_interface``; other threads may still be calling it."""


def listen(changes: TemporaryChanges, listener: "Listener") -> None:
    """Pass every attention call of this thread to a listener, in addition to other listeners."""
    kind = getattr(sys.modules.get("transformers.modeling_utils"), "AttentionInterface", None)

    def start() -> None:
        if kind is not None:
            if kind.get_interface is not _get_interface:
                _originals[:] = [kind.get_interface]
            hold("interface", changes, partial(setattr, kind, "get_interface", _originals[0]))
            kind.get_interface = _get_interface
        _here.listeners = (*getattr(_here, "listeners", ()), listener)

    def stop() -> None:
        others = getattr(_here, "listeners", ())
        _here.listeners = tuple(other for other in others if other is not listener)
        release(["interface"], changes)

    changes.change(start, stop)


def _get_interface(interface: Any, attn_implementation: Any, default: Callable[..., Any]) -> Any:
    """``AttentionInterface.get_interface``; in a thread with listeners, they see every call."""
    function = _originals[0](interface, attn_implementation, default)
    listeners: tuple[Listener, ...] = getattr(_here, "listeners", ())
    if not listeners:
        return function
    name = "eager" if function is default else str(attn_implementation)

    def listened_to(*args: Any, **named: Any) -> Any:
        call = Call.of(name, function, args, named)
        scores_by_listener = [(listener, listener.before(call)) for listener in listeners]
        output = function(*args, **named)
        for listener, scores in scores_by_listener:
            if scores is not None and isinstance(listener, AttentionWatch):
                listener.after(call, scores, output[0])
        return output

    return listened_to


def goes_through_interface(blocks: Sequence[nn.Module]) -> bool:
    """Whether all attention in the blocks uses the interface, judging by their code."""
    kinds = {type(module) for block in blocks for module in block.modules()}
    return all(_is_plain_or_heard(kind) for kind in kinds)


def _is_plain_or_heard(kind: type[nn.Module]) -> bool:
    """Whether a class of modules never calls PyTorch's fused attention directly."""
    if kind.__module__.startswith("torch.nn.modules."):
        return not issubclass(kind, nn.MultiheadAttention)
    return kind.__module__.startswith("transformers.") and not _attends_itself(kind.__module__)


@cache
def _attends_itself(module: str) -> bool:
    """Whether code of Transformers calls PyTorch's fused attention without the interface."""
    try:
        code = inspect.getsource(sys.modules[module])
    except (OSError, KeyError):
        return True
    return any(f"{name}(" in code for name in _FUSED)


# Scores of self-attention.


class AttentionWatch:
    """Calls ``callback(module, scores)`` for each self-attention of a model in this thread.

    ``modules`` are those of the model, itself first.

    The model's own function runs afterwards, unchanged. Cross-attention is ignored. Attention that
    cannot be read raises an error immediately. ``judge`` raises if the output of a call does not
    match what was read; call it after all other checks, because outputs that are not finite never
    match. Kinds of calls in ``verified`` are not compared again, and those that match are added.
    """

    def __init__(
        self, callback: OnAttention, modules: Sequence[nn.Module], verified: set[Any] | None = None
    ) -> None:
        self._callback, self._model, self._modules = callback, modules[0], set(modules)
        self._verified = set() if verified is None else verified
        self._elsewhere: dict[nn.Module, bool] = {}
        self._doubts: list[tuple[ModelError, Tensor]] = []
        self._compared: set[Any] = set()
        self.calls = 0

    def listen(self, changes: TemporaryChanges) -> None:
        """Start listening."""
        for module in self._modules:
            if _may_attend_elsewhere(type(module).forward):
                changes.before(module, self._note)
        listen(changes, self)

    def before(self, call: Call) -> AttentionScores | None:
        """Call the callback for self-attention; None for cross-attention and other models."""
        module = call.module
        if module not in self._modules:
            return None
        if self._elsewhere.get(module, False) or getattr(module, "is_cross_attention", False):
            return None
        self.calls += 1
        with torch.no_grad(), own_precision(call.query.device):
            scores = read(call)
            self._callback(module, scores)
        return scores

    def after(self, call: Call, scores: AttentionScores, output: Tensor) -> None:
        """Compare the scores with the output; the result stays on the device."""
        if (kind := call.kind) is not None and kind in self._verified:
            return
        error = call.refusal("does not compute what its arguments describe")
        with torch.no_grad(), own_precision(call.query.device):
            self._doubts.append((error, mismatch(call, scores, output)))
        self._compared |= set() if kind is None else {kind}

    def judge(self) -> None:
        """Raise for the first call whose output does not match what was read."""
        for error, doubt in self._doubts:
            if not float(doubt) <= 1:
                raise error
        self._verified |= self._compared

    def unheard(self) -> ModelError:
        """The error for a model none of whose attention used the interface."""
        return ModelError(
            "attention metrics need a rankscope Network or a model that uses the attention "
            f"interface of Transformers; {type(self._model).__name__} is neither: it computes "
            "attention in its own code. Convert it with rankscope.load, or omit attention metrics."
        )

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        signature = _signature(type(module).forward)
        named = signature.bind_partial(module, *args, **kwargs).arguments
        self._elsewhere[module] = any(named.get(name) is not None for name in _FROM_ELSEWHERE)


@cache
def _may_attend_elsewhere(forward: Callable[..., Any]) -> bool:
    return bool(set(_FROM_ELSEWHERE) & set(_signature(forward).parameters))


@cache  # 0.2 ms, for each attention of each pass
def _signature(forward: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(forward)


# Queries and keys that overflow, which would look like collapse.


class _Seen(NamedTuple):
    """One attention call whose queries and keys were checked."""

    layer: int
    dtype: torch.dtype
    factor: float
    """The largest possible score, in units of the product of their largest entries."""

    def fault(self, query: float, key: float) -> LayerFault | None:
        """The fault for these largest entries; None if there is none."""
        double = self.dtype == torch.float64
        most = torch.finfo(torch.float64 if double else torch.float32).max  # of kernels' sums
        if query * key * self.factor <= most:
            return None
        sizes = {"queries": query, "keys": key}
        broken = [name for name, size in sizes.items() if not size < torch.inf]
        return LayerFault(
            self.layer,
            f"layer {self.layer}: {' and '.join(broken) or 'products of queries and keys'} "
            f"overflow {str(self.dtype).removeprefix('torch.')} (the largest query entry is "
            f"{query:.3g}, the largest key entry {key:.3g}), and fused attention would return "
            "zeros for them; use a wider dtype, or find where training diverged.",
        )


class OverflowWatch(TorchFunctionMode):
    """Checks the inputs of PyTorch's fused attention in this thread while a block runs.

    The kernel returns zeros for rows whose scores are all NaN or all -∞, so that queries or keys
    that overflow would look like equal tokens; every other operation propagates NaN, which the
    metrics reject. Only a few numbers are kept of each call, and there is no GPU synchronisation
    before ``fault``. If all attention uses Transformers' interface, it is checked there;
    otherwise every operation of a block is inspected, which is a little slower.
    """

    def __init__(self, *, is_heard: bool) -> None:
        super().__init__()
        self._all_heard = is_heard
        self._layer: int | None = None
        self._seen: list[_Seen] = []
        self._peaks = GatheredPeaks()

    def listen(self, changes: TemporaryChanges) -> None:
        """Prepare for the first block."""
        if self._all_heard:
            listen(changes, self)

    def begin(self, block: nn.Module, layer: int) -> None:
        """Start watching."""
        self._layer = layer
        if not self._all_heard and not any(map(_has_a_fast_path, block.modules())):
            self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Stop watching; does nothing if nothing was watched."""
        self._layer = None
        if torch.overrides._get_current_function_mode() is self:
            self.__exit__(None, None, None)

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
            self._look(*projected(*args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))

    def before(self, call: Call) -> None:
        """Check a call of Transformers' attention; eager attention propagates NaN."""
        if call.implementation != "eager":
            self._look(call.query, call.key, scale=call.option("scaling"))

    def _look(
        self, query: Tensor, key: Tensor, *_: Any, scale: float | None = None, **__: Any
    ) -> None:
        query, key = unmapped(query), unmapped(key)
        if self._layer is None or query.is_nested or not query.numel() or not key.numel():
            return
        width = query.shape[-1]
        factor = width * (width**-0.5 if scale is None else abs(float(scale)))
        self._peaks.add(query, key)
        self._seen.append(_Seen(self._layer, query.dtype, factor))

    def send(self) -> None:
        """Start copying the records to the host, without waiting."""
        self._peaks.send()

    def fault(self) -> LayerFault | None:
        """The fault of the first layer whose queries or keys are not finite, or so large that their
        products may not be; this synchronises with the device."""
        peaks = zip(self._seen, self._peaks.finish(), strict=True)
        faults = [fault for seen, sizes in peaks if (fault := seen.fault(*sizes)) is not None]
        return min(faults, key=lambda fault: fault.layer, default=None)


Listener = AttentionWatch | OverflowWatch


def unmapped(tensor: Tensor) -> Tensor:
    """The whole tensor that ``vmap`` maps over."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


def projected(*args: Any, **kwargs: Any) -> list[Tensor]:
    """Queries and keys by head, as PyTorch's attention computes them internally."""
    named = SIGNATURE.bind(*args, **kwargs).arguments
    bias = named["in_proj_bias"]
    if named.get("use_separate_proj_weight", False):  # the packed ones may be None or empty then
        weights = (named["q_proj_weight"], named["k_proj_weight"])
    else:
        weights = named["in_proj_weight"].chunk(3)[:2]
    biases = (None, None) if bias is None else bias.chunk(3)[:2]
    return [
        linear(x, weight, shift).unflatten(-1, (named["num_heads"], -1))
        for x, weight, shift in zip((named["query"], named["key"]), weights, biases, strict=True)
    ]


def _has_a_fast_path(module: nn.Module) -> bool:
    """Whether this is PyTorch's attention in a form that has a fast path as a single operation.

    That operation propagates NaN, so there is nothing to check.
    """
    if not isinstance(module, nn.MultiheadAttention):
        return False
    fits = module.batch_first and module.num_heads % 2 == 0 and module.in_proj_weight is not None
    return fits and torch.backends.mha.get_fastpath_enabled()
