"""Compiled code runs as it was written while someone listens: it drops hooks without a word."""

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

_lock = threading.Lock()
_listeners = 0
_stance = ExitStack()


@contextmanager
def as_written() -> Iterator[None]:
    """Run nothing compiled for the time of the context, however and whenever it was compiled.

    PyTorch has one such switch for all threads, so it is turned by the first who listens and turned
    back by the last; in between, other threads run their compiled models more slowly.
    """
    global _listeners
    if "torch._dynamo.eval_frame" not in sys.modules:  # nothing has been compiled: spare the import
        yield
        return
    with _lock:
        if not _listeners:
            _stance.enter_context(torch.compiler.set_stance("force_eager"))
        _listeners += 1
    try:
        yield
    finally:
        with _lock:
            _listeners -= 1
            if not _listeners:
                _stance.close()


def has_no_other_form(module: nn.Module) -> bool:
    """Whether attention inside is compiled by transformers itself, and unusable if it were not.

    Without a compiler, flex attention holds a matrix for every pair of tokens.
    """
    configs = (getattr(each, "config", None) for each in module.modules())
    return any(getattr(each, "_attn_implementation", None) == "flex_attention" for each in configs)


def before_compilation(module: nn.Module) -> nn.Module:
    """The module that ``torch.compile`` was given, or the module itself."""
    inner = getattr(module, "_orig_mod", None)
    return before_compilation(inner) if isinstance(inner, nn.Module) else module
