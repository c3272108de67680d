"""Hooks on blocks that hear only what one thread does, and are gone afterwards."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from torch import nn

from rankscope.core.tracing._compiled import as_written, has_no_other_form

_lock = threading.RLock()
"""PyTorch numbers hooks with a plain counter: two threads that register at once could get the same
number, and one hook would take the other's place."""

Hook = Callable[..., Any]


class ThreadHooks:
    """Forward hooks that are called for what happens in the thread that registers them.

    Calls of other threads are none of ours; they are only counted, so that it can be said that the
    blocks did run, but elsewhere. Compiled code runs as it was written for as long as there are
    hooks, which it would drop.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self.elsewhere = 0
        self._undo = ExitStack()
        self._eager = False
        self._wrapped: dict[Hook, Hook] = {}

    def before(self, module: nn.Module, hook: Hook) -> None:
        """Call ``hook(module, args, kwargs)`` before the module runs."""
        self._run_as_written(module)
        with _lock:
            handle = module.register_forward_pre_hook(self._here(hook), with_kwargs=True)
            self._undo.callback(handle.remove)

    def after(self, module: nn.Module, hook: Hook) -> None:
        """Call ``hook(module, args, output)`` after the module ran."""
        self._run_as_written(module)
        with _lock:
            self._undo.callback(module.register_forward_hook(self._here(hook)).remove)

    def remove(self) -> None:
        """Take every hook away again."""
        with _lock:
            self._undo.close()
        self._wrapped.clear()  # which would keep a model alive until Python looks for cycles

    def _run_as_written(self, module: nn.Module) -> None:
        if not self._eager and not has_no_other_form(module):
            self._eager = True
            self._undo.enter_context(as_written())

    def _here(self, hook: Hook) -> Hook:
        """A hook that listens to this thread alone; one for all modules it is registered on."""
        if hook not in self._wrapped:
            self._wrapped[hook] = self._listening(hook)
        return self._wrapped[hook]

    def _listening(self, hook: Hook) -> Hook:
        @wraps(hook)
        def only_here(*call: Any) -> Any:
            # First of all the thread: while a hook is being registered, another thread may call it
            # without its keyword arguments.
            if threading.get_ident() != self._thread:
                self.elsewhere += 1
                return None
            return hook(*call)

        return only_here


@contextmanager
def thread_hooks() -> Iterator[ThreadHooks]:
    """Hooks for the time of a context; none is left behind, whatever happens."""
    hooks = ThreadHooks()
    try:
        yield hooks
    finally:
        hooks.remove()


def each_once(blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """The blocks, those that are there several times once."""
    return list(dict.fromkeys(blocks))
