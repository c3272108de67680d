"""A model in evaluation mode, and everything as it was afterwards, in every thread."""

import hashlib
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from rankscope.arguments import checked

_lock = threading.RLock()
_modes: dict[nn.Module, "_Mode"] = {}


class _Mode(NamedTuple):
    """How many contexts hold a module in evaluation mode, and the mode the first found it in."""

    holders: int
    training: bool


@checked
@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards modes and random states are as they were, whatever happened.

    Contexts may be nested, and several threads may be in one for the same model: it goes back when
    the last one leaves. The mode is set on each module, and no ``train()`` or ``eval()`` is called:
    some change weights there (LoRA layers merge theirs), and what a module computes in evaluation
    mode it must compute without that too.
    """
    with evaluating_all(list(model.modules())):
        yield


@contextmanager
def evaluating_all(
    modules: Sequence[nn.Module], notes: dict[str, str] | None = None
) -> Iterator[None]:
    """``evaluating`` for who has the modules already.

    It is noted if what runs in the context draws from the global random states, and from which.
    """
    held: list[nn.Module] = []
    with _random_states_kept({} if notes is None else notes):
        try:
            _hold(modules, held)
            yield
        finally:
            _release(held)


def own_modes(modules: Sequence[nn.Module]) -> list[str]:
    """The kinds of modules with a ``train()`` of their own, which is not called here.

    That of transformers' models does nothing but what is done here, and says nothing of them.
    """
    kinds = {type(module) for module in modules}
    return sorted(kind.__name__ for kind in kinds if _has_own_train(kind))


def _has_own_train(kind: type[nn.Module]) -> bool:
    owner = next(each for each in kind.__mro__ if "train" in vars(each))
    return owner is not nn.Module and owner.__module__.partition(".")[0] != "transformers"


def _hold(modules: Sequence[nn.Module], held: list[nn.Module]) -> None:
    """Set each module's mode; ``held`` tells at any time which have to be released."""
    with _lock:
        for module in modules:
            if not module.training and module not in _modes:
                continue  # nothing to do, and nothing to undo
            found = _modes.get(module, _Mode(0, module.training))
            _modes[module] = found._replace(holders=found.holders + 1)
            held.append(module)
            if module.training:
                module.training = False


def _release(modules: Sequence[nn.Module]) -> None:
    with _lock:
        for module in modules:
            mode = _modes.pop(module)
            if mode.holders > 1:
                _modes[module] = mode._replace(holders=mode.holders - 1)
            elif module.training != mode.training:
                module.training = mode.training


class _States(NamedTuple):
    python: Any
    numpy: Any
    cpu: torch.Tensor
    cuda: list[torch.Tensor]

    def name(self) -> str:
        """A digest: equal states draw equal numbers."""
        plain = repr((self.python, self.numpy[1].tolist(), self.numpy[2:]))
        tensors = b"".join(each.numpy().tobytes() for each in (self.cpu, *self.cuda))
        return hashlib.sha256(plain.encode() + tensors).hexdigest()[:12]


_kept: list[_States] = []
"""What the contexts that are open found, the first of them first."""


@contextmanager
def _random_states_kept(notes: dict[str, str]) -> Iterator[None]:
    """The global random states, put back as the first context found them when the last leaves."""
    with _lock:
        before = _random_states()
        _kept.append(before)
    try:
        yield
    finally:
        with _lock:
            now = _random_states()
            changed = _changed(before, now)
            if changed.any:
                notes["random numbers"] = f"drawn by the model itself, from state {before.name()}"
            if len(_kept) > 1:
                _kept.pop()
            else:
                _put_back(_kept[0], changed if _kept[0] is before else _changed(_kept[0], now))
                _kept.clear()


def _random_states() -> _States:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    legacy = np.random.get_state()  # noqa: NPY002 - the global state is what a model may draw from
    return _States(random.getstate(), legacy, torch.get_rng_state(), cuda)


class _Changed(NamedTuple):
    """Which of the states are others now."""

    python: bool
    numpy: bool
    cpu: bool
    cuda: list[bool]

    @property
    def any(self) -> bool:
        return self.python or self.numpy or self.cpu or any(self.cuda)


def _changed(before: _States, now: _States) -> _Changed:
    legacy = now.numpy[2:] != before.numpy[2:] or bool((now.numpy[1] != before.numpy[1]).any())
    cuda = [not torch.equal(new, old) for new, old in zip(now.cuda, before.cuda, strict=False)]
    return _Changed(now.python != before.python, legacy, not torch.equal(now.cpu, before.cpu), cuda)


def _put_back(before: _States, changed: _Changed) -> None:
    """Only what changed: another thread may be drawing from the others."""
    if changed.python:
        random.setstate(before.python)
    if changed.numpy:
        np.random.set_state(before.numpy)  # noqa: NPY002
    if changed.cpu:
        torch.set_rng_state(before.cpu)
    for device, other in enumerate(changed.cuda):
        if other:
            torch.cuda.set_rng_state(before.cuda[device], device)
