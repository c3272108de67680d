"""Attention of any model that goes through Transformers' attention interface, while it runs."""

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.arguments import checked
from rankscope.core.metrics import AttentionScores
from rankscope.core.tracing._attention_reading import Call, mismatch, read
from rankscope.core.tracing._hooks import ThreadHooks, thread_hooks
from rankscope.errors import ModelError

OnAttention = Callable[[nn.Module, AttentionScores], None]

_FROM_ELSEWHERE = ("key_value_states", "encoder_hidden_states")
"""Arguments of attention modules that hold the tokens of another sequence."""
_FUSED = ("scaled_dot_product_attention", "multi_head_attention_forward")
"""PyTorch's fused attention, by itself and with the projections around it."""
_lock = threading.RLock()
_here = threading.local()


class AttentionWatch:
    """What one context has seen: how many calls, and whether each was read as it was computed."""

    def __init__(self, callback: OnAttention, model: nn.Module, hooks: ThreadHooks) -> None:
        self._callback = callback
        self._elsewhere: dict[nn.Module, bool] = {}
        self._doubts: list[tuple[ModelError, Tensor]] = []
        self.calls = 0
        self._own = set(model.modules())
        for module in self._own:
            if _may_attend_elsewhere(type(module).forward):
                hooks.before(module, self._note)

    def before(self, call: Call) -> AttentionScores | None:
        """Tell the callback of self-attention; None for another model's and cross-attention."""
        module = call.module
        if module not in self._own:
            return None
        if self._elsewhere.get(module, False) or getattr(module, "is_cross_attention", False):
            return None
        self.calls += 1
        with _apart(call.query):
            scores = read(call)
            self._callback(module, scores)
        return scores

    def after(self, call: Call, scores: AttentionScores, output: Tensor) -> None:
        """Compare what was read with what came out; the answer waits on the device."""
        error = call.refusal("computes something else than its arguments tell")
        with _apart(call.query):
            self._doubts.append((error, mismatch(call, scores, output)))

    def judge(self) -> None:
        """Raise for the first call that computed something else than what was read."""
        for error, doubt in self._doubts:
            if not float(doubt) <= 1:
                raise error

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        named = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
        self._elsewhere[module] = any(named.get(name) is not None for name in _FROM_ELSEWHERE)


class _Listener:
    """Is told of every call of attention, and asks nothing of it."""

    def __init__(self, callback: Callable[[Call], None]) -> None:
        self._callback = callback

    def before(self, call: Call) -> AttentionScores | None:
        self._callback(call)
        return None

    def after(self, call: Call, scores: AttentionScores, output: Tensor) -> None:
        """Never called: ``before`` reads no scores."""


@cache
def _may_attend_elsewhere(forward: Callable[..., Any]) -> bool:
    return bool(set(_FROM_ELSEWHERE) & set(inspect.signature(forward).parameters))


@checked
@contextmanager
def watched_attention(callback: OnAttention, model: nn.Module) -> Iterator[AttentionWatch]:
    """Call ``callback(module, scores)`` for each self-attention of ``model`` in this thread.

    The model's own function runs afterwards, untouched. Cross-attention is left out. Attention that
    cannot be read is refused at once; at the end an error says if a call computed something else
    than what was read. Contexts may be nested, and each hears everything.
    """
    with unjudged_attention(callback, model) as watch:
        yield watch
    watch.judge()


@contextmanager
def unjudged_attention(callback: OnAttention, model: nn.Module) -> Iterator[AttentionWatch]:
    """``watched_attention`` for who asks ``judge`` later, when nothing else is wrong: numbers that
    are not finite are never those that were read."""
    with thread_hooks() as hooks:
        watch = AttentionWatch(callback, model, hooks)
        with _told(watch):
            yield watch


@contextmanager
def heard_calls(callback: Callable[[Call], None]) -> Iterator[None]:
    """Call ``callback(call)`` for each call of attention in this thread, before it runs."""
    with _told(_Listener(callback)):
        yield


@contextmanager
def _told(watch: "AttentionWatch | _Listener") -> Iterator[None]:
    """One more listener in this thread."""
    outer = getattr(_here, "watches", ())
    with _patched():
        _here.watches = (*outer, watch)
        try:
            yield
        finally:
            _here.watches = outer


def goes_through_interface(block: nn.Module) -> bool:
    """Whether all attention in a block does, as the code of its modules says."""
    return all(_is_plain_or_heard(type(module)) for module in block.modules())


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


def unseen(model: nn.Module) -> ModelError:
    """The error for a model of which no attention was seen."""
    return ModelError(
        f"metrics of attention need a rankscope Network or a model that goes through the attention "
        f"interface of Transformers, and {type(model).__name__} is neither: it computes attention "
        "in code of its own. Convert it with rankscope.load, or leave those metrics out."
    )


class _Patch:
    """The interface of Transformers, listened to while any thread has a context."""

    def __init__(self) -> None:
        self.users = 0
        self.original: Any = None

    def interface(self) -> Any:
        """The class whose instances hand out attention functions; None without Transformers."""
        return getattr(sys.modules.get("transformers.modeling_utils"), "AttentionInterface", None)

    def enter(self) -> None:
        kind = self.interface()
        with _lock:
            self.users += 1
            if kind is not None and kind.get_interface is not _get_interface:
                self.original = kind.get_interface
                kind.get_interface = _get_interface

    def leave(self) -> None:
        with _lock:
            self.users -= 1
            kind = self.interface()
            if self.users == 0 and kind is not None and kind.get_interface is _get_interface:
                kind.get_interface = self.original  # kept: a call may be under way elsewhere


_patch = _Patch()


@contextmanager
def _patched() -> Iterator[None]:
    _patch.enter()
    try:
        yield
    finally:
        _patch.leave()


@contextmanager
def _apart(tensor: Tensor) -> Iterator[None]:
    """No graph and no autocast: figures keep their digits, whatever the model computes in."""
    with torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
        yield


def _get_interface(interface: Any, attn_implementation: Any, default: Callable[..., Any]) -> Any:
    """What ``AttentionInterface.get_interface`` gives, listened to if this thread watches."""
    original = _patch.original
    function = original(interface, attn_implementation, default)
    watches: tuple[AttentionWatch | _Listener, ...] = getattr(_here, "watches", ())
    if not watches:
        return function
    name = "eager" if function is default else str(attn_implementation)

    def listened_to(*args: Any, **named: Any) -> Any:
        call = Call.of(name, function, args, named)
        found = [(watch, watch.before(call)) for watch in watches]
        output = function(*args, **named)
        for watch, scores in found:
            if scores is not None:
                watch.after(call, scores, output[0])
        return output

    return listened_to
