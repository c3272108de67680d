"""Attention of any model while it runs: heard at Transformers' interface, watched for overflow."""

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
_SIGNATURE = inspect.signature(multi_head_attention_forward)


# Transformers' attention interface, listened to.


_here = threading.local()
_originals: list[Any] = []
"""What ``AttentionInterface.get_interface`` was; kept for calls that are under way elsewhere."""


def listen(changes: TemporaryChanges, listener: "Listener") -> None:
    """Have a listener told of attention in this thread, with others that may be there."""
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
    """What ``AttentionInterface.get_interface`` gives, listened to if this thread listens."""
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
    """Whether all attention in some blocks does, as the code of their modules says."""
    kinds = {type(module) for block in blocks for module in block.modules()}
    return all(_is_plain_or_heard(kind) for kind in kinds)


def _is_plain_or_heard(kind: type[nn.Module]) -> bool:
    """Whether a kind of module computes no attention by PyTorch's fused function itself."""
    if kind.__module__.startswith("torch.nn.modules."):
        return not issubclass(kind, nn.MultiheadAttention)
    return kind.__module__.startswith("transformers.") and not _attends_itself(kind.__module__)


@cache
def _attends_itself(module: str) -> bool:
    """Whether code of Transformers calls PyTorch's fused attention past the interface."""
    try:
        code = inspect.getsource(sys.modules[module])
    except (OSError, KeyError):
        return True
    return any(f"{name}(" in code for name in _FUSED)


# Scores of self-attention.


class AttentionWatch:
    """Calls ``callback(module, scores)`` for each self-attention of ``model`` in this thread.

    The model's own function runs afterwards, untouched. Cross-attention is left out. Attention that
    cannot be read is refused at once; ``judge`` raises if a call computed something else than what
    was read, and is asked when nothing else is wrong: numbers that are not finite are never those
    that were read.
    """

    def __init__(self, callback: OnAttention, model: nn.Module) -> None:
        self._callback, self._model = callback, model
        self._modules = set(model.modules())
        self._elsewhere: dict[nn.Module, bool] = {}
        self._doubts: list[tuple[ModelError, Tensor]] = []
        self.calls = 0

    def listen(self, changes: TemporaryChanges) -> None:
        """Listen from here on."""
        for module in self._modules:
            if _may_attend_elsewhere(type(module).forward):
                changes.before(module, self._note)
        listen(changes, self)

    def before(self, call: Call) -> AttentionScores | None:
        """Tell the callback of self-attention; None for another model's and cross-attention."""
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
        """Compare what was read with what came out; the answer waits on the device."""
        error = call.refusal("computes something else than its arguments tell")
        with torch.no_grad(), own_precision(call.query.device):
            self._doubts.append((error, mismatch(call, scores, output)))

    def judge(self) -> None:
        """Raise for the first call that computed something else than what was read."""
        for error, doubt in self._doubts:
            if not float(doubt) <= 1:
                raise error

    def unheard(self) -> ModelError:
        """The error for a model none of whose attention was heard."""
        return ModelError(
            "metrics of attention need a rankscope Network or a model that goes through the "
            f"attention interface of Transformers, and {type(self._model).__name__} is neither: it "
            "computes attention in code of its own. Convert it with rankscope.load, or leave those "
            "metrics out."
        )

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        named = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
        self._elsewhere[module] = any(named.get(name) is not None for name in _FROM_ELSEWHERE)


@cache
def _may_attend_elsewhere(forward: Callable[..., Any]) -> bool:
    return bool(set(_FROM_ELSEWHERE) & set(inspect.signature(forward).parameters))


# Queries and keys that overflow, which would pass for collapse.


class _Seen(NamedTuple):
    """One attention whose queries and keys were looked at."""

    layer: int
    dtype: torch.dtype
    factor: float
    """What a score is at most, in units of the product of their largest entries."""

    def fault(self, query: float, key: float) -> LayerFault | None:
        """What is wrong where these are the largest entries."""
        double = self.dtype == torch.float64
        most = torch.finfo(torch.float64 if double else torch.float32).max  # kernels add up in it
        if query * key * self.factor <= most:
            return None
        sizes = {"queries": query, "keys": key}
        broken = [name for name, size in sizes.items() if not size < torch.inf]
        return LayerFault(
            self.layer,
            f"layer {self.layer}: {' and '.join(broken) or 'products of queries and keys'} "
            f"overflow {str(self.dtype).removeprefix('torch.')} (the largest query entry is "
            f"{query:.3g}, the largest key entry {key:.3g}), and fused attention would give zeros "
            "for them; use a wider dtype, or look where training broke down.",
        )


class OverflowWatch(TorchFunctionMode):
    """Looks at what PyTorch's fused attention is given in this thread while a block runs.

    The kernel gives zeros for rows whose scores are all NaN or all -∞, so that queries or keys
    that overflow would read as tokens that are all alike; every other operation hands NaN on, and
    the metrics refuse it. Few numbers are kept of each call, and none is waited for before
    ``fault``. If all attention goes through Transformers' interface, it is heard there; else
    every operation of a block is looked at, which takes each of them a little longer.
    """

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self._all_heard = goes_through_interface(blocks)
        self._layer: int | None = None
        self._seen: list[_Seen] = []
        self._peaks = GatheredPeaks()

    def listen(self, changes: TemporaryChanges) -> None:
        """Be ready for the first block."""
        if self._all_heard:
            listen(changes, self)

    def begin(self, block: nn.Module, layer: int) -> None:
        """Watch from here on."""
        self._layer = layer
        if not self._all_heard and not any(map(_has_a_fast_path, block.modules())):
            self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Watch no longer, whether or not anything was watched."""
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
            self._look(*_projected(*args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))

    def before(self, call: Call) -> None:
        """Look at a call of Transformers' attention; eager attention hands NaN on."""
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
        """Let what was seen come to the host, while other things are done."""
        self._peaks.send()

    def fault(self) -> LayerFault | None:
        """What is wrong in the first layer whose queries or keys are no numbers, or so large that
        their products may not be; this waits for the device."""
        peaks = zip(self._seen, self._peaks.finish(), strict=True)
        faults = [fault for seen, sizes in peaks if (fault := seen.fault(*sizes)) is not None]
        return min(faults, key=lambda fault: fault.layer, default=None)


Listener = AttentionWatch | OverflowWatch


def unmapped(tensor: Tensor) -> Tensor:
    """What ``vmap`` maps over, as a whole."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


def _projected(*args: Any, **kwargs: Any) -> list[Tensor]:
    """Queries and keys by head, as PyTorch's attention finds them inside itself, out of sight."""
    arguments = _SIGNATURE.bind(*args, **kwargs).arguments
    bias = arguments["in_proj_bias"]
    if arguments.get(
        "use_separate_proj_weight", False
    ):  # the packed ones may be None or empty then
        weights = (arguments["q_proj_weight"], arguments["k_proj_weight"])
    else:
        weights = arguments["in_proj_weight"].chunk(3)[:2]
    biases = (None, None) if bias is None else bias.chunk(3)[:2]
    return [
        linear(x, weight, shift).unflatten(-1, (arguments["num_heads"], -1))
        for x, weight, shift in zip(
            (arguments["query"], arguments["key"]), weights, biases, strict=True
        )
    ]


def _has_a_fast_path(module: nn.Module) -> bool:
    """Whether this is PyTorch's attention, in a form it runs as one operation if nobody watches.

    That operation hands NaN on, so there is nothing to watch for.
    """
    if not isinstance(module, nn.MultiheadAttention):
        return False
    fits = module.batch_first and module.num_heads % 2 == 0 and module.in_proj_weight is not None
    return fits and torch.backends.mha.get_fastpath_enabled()
