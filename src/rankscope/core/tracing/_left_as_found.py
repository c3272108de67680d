"""A model that is run in evaluation mode, with hooks on its modules, and left as it was found."""

import hashlib
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import nn

from rankscope.arguments import checked
from rankscope.core.tracing._inputs import from_config
from rankscope.errors import KindError

Hook = Callable[..., Any]

_lock = threading.RLock()
"""For all that threads share. Hooks too: PyTorch numbers them with a plain counter, and two threads
that register at once could get the same number."""


class LeftAsFound:
    """Changes a run needs for its own time: hooks, modes, no gradients, nothing compiled.

    Each is written down before it is made, and to undo one twice does no harm, so that an interrupt
    (Ctrl-C) at any moment leaves nothing behind. Modes, random states and the compiler's stance are
    shared by all threads: they go back when the last one leaves.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        self._thread = threading.get_ident()
        self._eager = False
        self.elsewhere = 0
        """How often hooked modules ran in other threads, whose calls are none of ours."""
        self.drawn = ""
        """What the run drew from the global random states, once they are put back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._put_back()
        finally:  # again, if that was interrupted
            self._put_back()

    def _put_back(self) -> None:
        while self._undo:
            with _lock:
                self._undo[-1]()
            self._undo.pop()

    def undo_later(self, undo: Callable[[], object]) -> None:
        """Have something undone in the end that is about to be done; it may be called twice."""
        self._undo.append(undo)

    def before(self, module: nn.Module, hook: Hook) -> None:
        """Call ``hook(module, args, kwargs)`` before the module runs in this thread."""
        hook = self._here(hook)
        places = (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs)
        self._begin_hooking(module, partial(_unhook, hook, *places))
        with _lock:
            module.register_forward_pre_hook(hook, with_kwargs=True)

    def after(self, module: nn.Module, hook: Hook) -> None:
        """Call ``hook(module, args, output)`` after the module ran in this thread."""
        hook = self._here(hook)
        self._begin_hooking(module, partial(_unhook, hook, module._forward_hooks))
        with _lock:
            module.register_forward_hook(hook)

    def _begin_hooking(self, module: nn.Module, unhook: Callable[[], object]) -> None:
        """Compiled code would drop hooks without a word, so it runs as it was written."""
        refuse_scripted(module)
        if not self._eager and not _has_no_other_form(module):
            self._eager = True
            self.run_as_written()
        self.undo_later(unhook)

    def _here(self, hook: Hook) -> Hook:
        """A hook that listens to this thread alone."""

        def only_here(*call: Any) -> Any:
            # First of all the thread: while a hook is being registered, another thread may call it
            # without its keyword arguments.
            if threading.get_ident() != self._thread:
                self.elsewhere += 1
                return None
            return hook(*call)

        return only_here

    def run_as_written(self) -> None:
        """Run nothing compiled, however and whenever it was compiled; in no thread: PyTorch has
        one such switch for all."""
        if "torch._dynamo.eval_frame" not in sys.modules:  # nothing was compiled: spare the import
            return
        self.undo_later(partial(_let_compile, self))
        with _lock:
            if not _eager_for:
                _stance.enter_context(torch.compiler.set_stance("force_eager"))
            _eager_for.add(self)

    def without_gradients(self) -> None:
        """Record no graph."""
        self.undo_later(partial(torch.set_grad_enabled, torch.is_grad_enabled()))
        torch.set_grad_enabled(False)

    def evaluate(self, modules: Sequence[nn.Module]) -> None:
        """Evaluation mode, set on each module; and random states as they were, afterwards.

        No ``train()`` or ``eval()`` is called: some change weights there (LoRA layers merge
        theirs), and what a module computes in evaluation mode it must compute without that too.
        """
        states = _random_states()
        self.undo_later(partial(self._put_back_random, states))
        with _lock:
            _random.setdefault("found", states)
            _random_for.add(self)
        self.undo_later(partial(_release, modules, self))
        with _lock:
            for module in modules:
                if module.training or id(module) in _modes:
                    mode = _modes.setdefault(id(module), _Mode(module, module.training, set()))
                    mode.holders.add(self)
                    _set_mode(module, training=False)

    def _put_back_random(self, before: "_States") -> None:
        now = _random_states()
        if _to_put_back(before, now):
            self.drawn = f"drawn by the model itself, from state {before.name()}"
        _random_for.discard(self)
        if not _random_for and "found" in _random:
            for put_back in _to_put_back(_random["found"], now):
                put_back()
            del _random["found"]


@checked
@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards modes and random states are as they were, whatever happened.

    Contexts may be nested, and several threads may be in one for the same model: it goes back when
    the last one leaves. No ``train()`` or ``eval()`` is called.
    """
    with LeftAsFound() as found:
        found.evaluate(list(model.modules()))
        yield


def own_modes(modules: Sequence[nn.Module]) -> list[str]:
    """The kinds of modules with a ``train()`` of their own, which is not called here.

    That of transformers' models does nothing but what is done here, and says nothing of them.
    """
    names = []
    for kind in {type(module) for module in modules}:
        owner = next(each for each in kind.__mro__ if "train" in vars(each))
        if owner is not nn.Module and owner.__module__.partition(".")[0] != "transformers":
            names.append(kind.__name__)
    return sorted(names)


def before_compilation(module: nn.Module) -> nn.Module:
    """The module that ``torch.compile`` was given, or the module itself."""
    inner = getattr(module, "_orig_mod", None)
    return before_compilation(inner) if isinstance(inner, nn.Module) else module


def refuse_scripted(module: nn.Module) -> None:
    """Raise for a module that runs outside Python, where no hook is called."""
    if isinstance(module, torch.jit.ScriptModule):
        raise KindError(
            "TorchScript runs outside Python, where blocks cannot be watched; trace the model that "
            "was scripted, or script only parts of its blocks."
        )


def _has_no_other_form(module: nn.Module) -> bool:
    """Whether attention inside is compiled by transformers itself, and unusable if it were not.

    Without a compiler, flex attention holds a matrix for every pair of tokens.
    """
    kinds = (from_config(each, "_attn_implementation") for each in module.modules())
    return "flex_attention" in kinds


def _unhook(hook: Hook, hooks: dict[int, Hook], *beside: dict[int, bool]) -> None:
    for number in [number for number, each in hooks.items() if each is hook]:
        del hooks[number]
        for place in beside:
            place.pop(number, None)


_eager_for: set[LeftAsFound] = set()
_stance = ExitStack()


def _let_compile(holder: LeftAsFound) -> None:
    _eager_for.discard(holder)
    if not _eager_for:
        _stance.close()


class _Mode(NamedTuple):
    """The mode the first found a module in, and who holds it in evaluation mode."""

    module: nn.Module
    training: bool
    holders: set[LeftAsFound]


_modes: dict[int, _Mode] = {}
"""By identity: a module may say it equals another."""


def _release(modules: Sequence[nn.Module], holder: LeftAsFound) -> None:
    for module in modules:
        mode = _modes.get(id(module))
        if mode is not None:
            mode.holders.discard(holder)
            if not mode.holders:
                _set_mode(module, training=mode.training)
                del _modes[id(module)]


def _set_mode(module: nn.Module, *, training: bool) -> None:
    if "training" in vars(module):  # the same, without what PyTorch asks of any attribute
        vars(module)["training"] = training
    elif module.training != training:
        module.training = training


class _States(NamedTuple):
    """The global states that random numbers are drawn from."""

    python: Any
    numpy: Any
    cpu: torch.Tensor
    cuda: list[torch.Tensor]

    def name(self) -> str:
        """A digest: equal states draw equal numbers."""
        plain = repr((self.python, self.numpy[1].tolist(), self.numpy[2:]))
        tensors = b"".join(each.numpy().tobytes() for each in (self.cpu, *self.cuda))
        return hashlib.sha256(plain.encode() + tensors).hexdigest()[:12]


_random: dict[str, _States] = {}
"""What the first found, under ``found``, while anyone is there."""
_random_for: set[LeftAsFound] = set()


def _random_states() -> _States:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    legacy = np.random.get_state()  # noqa: NPY002 - the global state is what a model may draw from
    return _States(random.getstate(), legacy, torch.get_rng_state(), cuda)


def _to_put_back(before: _States, now: _States) -> list[Callable[[], object]]:
    """What puts those states back that changed: another thread may be drawing from the others."""
    calls: list[Callable[[], object]] = []
    if now.python != before.python:
        calls.append(partial(random.setstate, before.python))
    if now.numpy[2:] != before.numpy[2:] or bool((now.numpy[1] != before.numpy[1]).any()):
        calls.append(partial(np.random.set_state, before.numpy))
    if not torch.equal(now.cpu, before.cpu):
        calls.append(partial(torch.set_rng_state, before.cpu))
    for device, (new, old) in enumerate(zip(now.cuda, before.cuda, strict=False)):
        if not torch.equal(new, old):
            calls.append(partial(torch.cuda.set_rng_state, old, device))
    return calls
