"""Temporary changes for a run: evaluation mode, hooks and settings, all undone afterwards."""

import hashlib
import operator
import random
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import _GeneratorContextManager, contextmanager, suppress
from functools import partial
from itertools import count
from traceback import walk_tb
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import nn

from rankscope.arguments import checked
from rankscope.core.tracing._inputs import from_config
from rankscope.errors import KindError

Hook = Callable[..., Any]
Undo = Callable[[], object]

_lock = threading.RLock()
"""Guards all state that threads share."""
_PATIENCE = 100
"""The number of failures after which an undo is not tried again."""
_numbers = count(-1, -1)
"""Keys of our hooks. PyTorch counts its own upwards from 0, which is not thread-safe."""

_CONTEXT_CODE = {
    _GeneratorContextManager.__enter__.__code__,
    _GeneratorContextManager.__exit__.__code__,
}


class TemporaryChanges:
    """Changes for the duration of a run: hooks, modes, no gradients, nothing compiled.

    An interrupt (Ctrl-C) may come between any two instructions, even before the first one of
    ``__exit__``. So this is entered several times, ``with TemporaryChanges() as changes, changes,
    changes, changes:``, and each exit undoes what an earlier one could not: two would be enough
    for a single interrupt, four are for several close together. How to undo a change is recorded
    before it is made, and an undo may be called twice, or for a change that was not made.
    """

    def __init__(self) -> None:
        self._undo: list[Undo] = []
        self._entered = 0
        self._handled = sys.exc_info()[1]  # by the caller
        self._in_lock = False
        self._thread = threading.get_ident()
        self._eager = False
        self._states: _RandomStates | None = None
        self.elsewhere = 0
        """How often hooked modules ran in other threads, whose calls are ignored."""
        self.drawn = ""
        """What the run drew from the global random states, once they are restored."""

    def __enter__(self) -> Self:
        self._entered += 1
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        try:
            if self._undo and error is not None:
                self._undo.append(partial(_close_contexts, error, self._handled))
            self._put_back()
        finally:  # again, if that was interrupted
            self._put_back()

    def _put_back(self) -> None:
        """Undo all changes, the last first; an interrupt is raised when this is done."""
        interruption, failures = None, 0
        while self._undo:
            try:
                while self._undo:
                    self._alone(self._undo[-1])
                    self._undo.pop()
            except BaseException as error:
                interruption, failures = error, failures + 1
                if failures > _PATIENCE:
                    self._undo.pop()
        if interruption is not None:
            try:
                raise interruption
            finally:
                del interruption  # it refers to this frame, and thereby to the model

    def change(self, make: Callable[[], object], undo: Undo) -> None:
        """Make a change now and undo it at the end, each under the lock."""
        self.undo_later(undo)
        self._alone(make)

    def undo_later(self, undo: Undo) -> None:
        """Call ``undo`` at the end."""
        assert self._entered == 4, "use with TemporaryChanges() as changes, changes, changes, ..."
        self._undo.append(undo)

    def _alone(self, call: Callable[[], object]) -> None:
        if self._in_lock:  # an exception came between the end of a call and the lock's release
            with suppress(RuntimeError):  # this thread does not hold it
                while True:
                    _lock.release()
        self._in_lock = True
        with _lock:
            call()
        self._in_lock = False

    def before(self, module: nn.Module, hook: Hook) -> None:
        """Call ``hook(module, args, kwargs)`` before the module runs in this thread."""
        self.around([module], before=hook)

    def after(self, module: nn.Module, hook: Hook) -> None:
        """Call ``hook(module, args, output)`` after the module ran in this thread."""
        self.around([module], after=hook)

    def around(
        self, modules: Iterable[nn.Module], *, before: Hook | None = None, after: Hook | None = None
    ) -> None:
        """Call hooks before and after each module runs in this thread.

        Compiled code would silently ignore hooks, so it runs uncompiled.
        """
        modules, number = list(modules), next(_numbers)
        first = None if before is None else self._here(before)
        last = None if after is None else self._here(after)
        for module in modules:
            refuse_scripted(module)
            if not self._eager and not _has_no_other_form(module):
                self._eager = True
                self.run_as_written()

        def register() -> None:
            for module in modules:
                if first is not None:
                    module._forward_pre_hooks_with_kwargs[number] = True
                    module._forward_pre_hooks[number] = first
                if last is not None:
                    module._forward_hooks[number] = last

        def remove() -> None:
            for module in modules:
                module._forward_pre_hooks.pop(number, None)
                module._forward_pre_hooks_with_kwargs.pop(number, None)
                module._forward_hooks.pop(number, None)

        self.change(register, remove)

    def _here(self, hook: Hook) -> Hook:
        """The hook, restricted to this thread."""

        def only_here(*call: Any) -> Any:
            if threading.get_ident() != self._thread:
                self.elsewhere += 1
                return None
            return hook(*call)

        return only_here

    def run_as_written(self) -> None:
        """Run nothing compiled, in any thread: PyTorch has one switch for all."""
        compiler = sys.modules.get("torch._dynamo.eval_frame")
        if compiler is None:  # nothing was compiled: avoid the import
            return

        def force_eager() -> None:
            hold("stance", self, partial(setattr, compiler, "_stance", compiler._stance))
            torch.compiler.set_stance("force_eager")

        self.change(force_eager, partial(release, ["stance"], self))

    def without_gradients(self) -> None:
        """Disable gradients; restore this thread's settings afterwards."""
        self.change(partial(torch.set_grad_enabled, False), _ThreadSettings.now().put_back)

    def keep_random_states(self) -> None:
        """Restore the global random states afterwards."""
        self.change(self._hold_random, self._release_random)

    def without_cudnn_attention(self) -> None:
        """Turn one of PyTorch's kernels of attention off; its switch is shared by all threads."""
        backends, name = torch.backends.cuda, "attention of cuDNN"

        def turn_off() -> None:
            hold(name, self, partial(backends.enable_cudnn_sdp, backends.cudnn_sdp_enabled()))
            backends.enable_cudnn_sdp(False)

        self.change(turn_off, partial(release, [name], self))

    def keep_buffers(self, modules: Sequence[nn.Module]) -> None:
        """Restore the buffers of a model's modules afterwards, if a forward pass writes to them or
        replaces them, as routers and dynamic rotary embeddings do; and the numbers beside them."""
        name = ("buffers", id(modules[0]))

        def hold_buffers() -> None:
            kept = [_KeptBuffers(module) for module in modules if module._buffers]
            hold(name, self, partial(_put_back_buffers, kept))

        self.change(hold_buffers, partial(release, [name], self))

    def keep_shards(self, modules: Sequence[nn.Module]) -> None:
        """Divide parameters again that FSDP2 leaves whole, because no backward pass follows.

        An optimizer made afterwards would otherwise get those that training does not use.
        """
        sharded: list[tuple[Any, list[int]]] = [
            (module, [id(parameter) for parameter in module.parameters()])
            for module in modules
            if hasattr(type(module), "set_requires_gradient_sync")
        ]

        def divide() -> None:
            for module, parameters in sharded:
                if [id(parameter) for parameter in module.parameters()] != parameters:
                    module.reshard()

        self.undo_later(divide)

    def evaluate(self, modules: Sequence[nn.Module]) -> None:
        """Set evaluation mode on each module; restore modes and random states afterwards.

        ``train()`` and ``eval()`` are not called, because some modules change weights there (LoRA
        layers merge theirs).
        """

        def set_modes() -> None:
            for module in modules:
                if module.training or id(module) in _shared:
                    hold(id(module), self, partial(_set_mode, module, training=module.training))
                    _set_mode(module, training=False)

        self.keep_random_states()
        self.change(set_modes, partial(release, [id(module) for module in modules], self))

    def _hold_random(self) -> None:
        self._states = _RandomStates.now()
        hold("random states", self, self._states.put_back)

    def _release_random(self) -> None:
        if self._states is not None and self._states.changes():
            self.drawn = f"drawn by the model from the global state {self._states.name()}"
        release(["random states"], self)


class _Shared(NamedTuple):
    """A change that several runs share: how to undo it, and the runs that still need it."""

    undo: Undo
    holders: set[TemporaryChanges]


_shared: dict[Hashable, _Shared] = {}
"""By name; a module's mode by the id of the module, because modules may define equality."""


def hold(name: Hashable, holder: TemporaryChanges, undo: Undo) -> None:
    """Record how to undo a change before it is made, unless another run has done so."""
    _shared.setdefault(name, _Shared(undo, set())).holders.add(holder)


def release(names: Iterable[Hashable], holder: TemporaryChanges) -> None:
    """Undo the changes that no other run needs."""
    for name in names:
        shared = _shared.get(name)
        if shared is not None:
            shared.holders.discard(holder)
            if not shared.holders:
                shared.undo()
                del _shared[name]


@checked
@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A context in evaluation mode; modes and random states are restored afterwards.

    >>> import torch
    >>> from rankscope.core.tracing import evaluating
    >>> model = torch.nn.Dropout()
    >>> with evaluating(model):
    ...     inside = model.training
    >>> inside, model.training
    (False, True)

    Contexts may be nested and used by several threads for one model; the last one to exit restores
    the modes. ``train()`` and ``eval()`` are not called.
    """
    with TemporaryChanges() as changes, changes, changes, changes:
        changes.evaluate(list(model.modules()))
        yield


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """A context in which PyTorch uses its other kernels of attention."""
    with TemporaryChanges() as changes, changes, changes, changes:
        changes.without_cudnn_attention()
        yield


def _close_contexts(error: BaseException | None, handled: BaseException | None) -> None:
    """Close contexts whose enter or exit was interrupted by an error, up to one ``handled`` before.

    Each is a generator suspended at its ``yield``, which would otherwise continue, and make
    changes, when the last reference to the traceback is gone.
    """
    while error is not None and error is not handled:
        for frame, _ in walk_tb(error.__traceback__):
            if frame.f_code in _CONTEXT_CODE:
                frame.f_locals["self"].gen.close()
        error = error.__context__


def own_modes(modules: Sequence[nn.Module]) -> list[str]:
    """The classes of modules that override ``train()``, which is not called here.

    The override in Transformers is not listed, because it does nothing else.
    """
    names = []
    for kind in {type(module) for module in modules}:
        owner = next(base for base in kind.__mro__ if "train" in vars(base))
        if owner is not nn.Module and owner.__module__.partition(".")[0] != "transformers":
            names.append(kind.__name__)
    return sorted(names)


def listen(module: nn.Module, hook: Hook) -> Undo:
    """Call ``hook(module, args, output)`` after every forward pass; returns what removes the hook.

    Unlike those of ``TemporaryChanges`` it does not suspend compilation: a hook that is there
    before the first call is compiled into the model.
    """
    refuse_scripted(module)
    return module.register_forward_hook(hook).remove


def before_compilation(module: nn.Module) -> nn.Module:
    """The original of a compiled module, or the module itself."""
    inner = getattr(module, "_orig_mod", None)
    return before_compilation(inner) if isinstance(inner, nn.Module) else module


def refuse_scripted(module: nn.Module) -> None:
    """Raise for a TorchScript module, which calls no Python hooks."""
    if isinstance(module, torch.jit.ScriptModule):
        raise KindError(
            "TorchScript runs outside Python, where blocks cannot be observed; trace the original "
            "model, or script only parts of its blocks."
        )


def _has_no_other_form(module: nn.Module) -> bool:
    """Whether the module uses flex attention, which must stay compiled.

    Without a compiler, flex attention stores a matrix with every pair of tokens.
    """
    kinds = (from_config(part, "_attn_implementation") for part in module.modules())
    return "flex_attention" in kinds


def _set_mode(module: nn.Module, *, training: bool) -> None:
    if "training" in vars(module):  # the same, without the overhead of ``nn.Module.__setattr__``
        vars(module)["training"] = training
    elif module.training != training:
        module.training = training


class _KeptBuffers:
    """The buffers of a module before a run, copies of what they held, and its plain attributes."""

    def __init__(self, module: nn.Module) -> None:
        self._module, self._buffers = module, dict(module._buffers)
        self.pairs = [
            (buffer, buffer.detach().clone())
            for buffer in self._buffers.values()
            if buffer is not None and _can_restore(buffer)
        ]
        self._plain = {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, int | float | str) and name != "training"
        }

    def put_back(self) -> None:
        """Buffers that were replaced, and numbers such as the length that rotations are for."""
        buffers = self._module._buffers
        if any(buffers.get(name) is not buffer for name, buffer in self._buffers.items()):
            buffers.update(self._buffers)
        vars(self._module).update(self._plain)


def _can_restore(buffer: torch.Tensor) -> bool:
    """Whether values can be compared and copied; an inference tensor cannot be written to."""
    plain = type(buffer) in (torch.Tensor, nn.Parameter, nn.Buffer)
    dense = buffer.layout == torch.strided and not buffer.is_nested and not buffer.is_quantized
    return plain and dense and not buffer.is_meta and not buffer.is_inference()


def _put_back_buffers(kept: Sequence[_KeptBuffers]) -> None:
    """Restore what a run changed; values are compared, since not every write is counted.

    There is one wait for each device.
    """
    by_device: dict[torch.device, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for module in kept:
        module.put_back()
        for buffer, copy in module.pairs:
            by_device.setdefault(buffer.device, []).append((buffer, copy))
    with torch.no_grad():
        for pairs in by_device.values():
            changed = torch.stack([(buffer != copy).any() for buffer, copy in pairs]).tolist()
            for (buffer, copy), is_changed in zip(pairs, changed, strict=True):
                if is_changed:  # through ``data``: what autograd saved stays valid
                    buffer.data.copy_(copy)


class _ThreadSettings(NamedTuple):
    """PyTorch's and NumPy's settings of one thread that contexts inside a run change."""

    gradients: bool
    function_modes: int
    autocast: dict[str, bool]
    autocast_nesting: int
    numpy_errors: Any

    @classmethod
    def now(cls) -> Self:
        return cls(
            torch.is_grad_enabled(),
            torch._C._len_torch_function_stack(),
            {device: torch.is_autocast_enabled(device) for device in ("cpu", "cuda")},
            _autocast_nesting(),
            np.geterr(),
        )

    def put_back(self) -> None:
        torch.set_grad_enabled(self.gradients)
        while torch._C._len_torch_function_stack() > self.function_modes:
            torch._C._pop_torch_function_stack()
        for device, enabled in self.autocast.items():
            torch.set_autocast_enabled(device, enabled)
        while _autocast_nesting() > self.autocast_nesting:
            torch.autocast_decrement_nesting()
        np.seterr(**self.numpy_errors)


def _autocast_nesting() -> int:
    """Can only be read by changing it; both steps are one call, so that nothing interrupts them."""
    there_and_back = (torch.autocast_increment_nesting, torch.autocast_decrement_nesting)
    return list(map(operator.call, there_and_back))[-1]


class _RandomStates(NamedTuple):
    """The global random states."""

    python: Any
    numpy: Any
    cpu: torch.Tensor
    cuda: list[torch.Tensor]

    @classmethod
    def now(cls) -> Self:
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        numpy = np.random.get_state()  # noqa: NPY002 - what a model may draw from
        return cls(random.getstate(), numpy, torch.get_rng_state(), cuda)

    def name(self) -> str:
        """A digest: equal states draw equal numbers."""
        plain = repr((self.python, self.numpy[1].tolist(), self.numpy[2:]))
        tensors = b"".join(state.numpy().tobytes() for state in (self.cpu, *self.cuda))
        return hashlib.sha256(plain.encode() + tensors).hexdigest()[:12]

    def changes(self) -> list[Undo]:
        """Calls that restore the states that changed; other threads may be using the others."""
        now = self.now()
        calls: list[Undo] = []
        if now.python != self.python:
            calls.append(partial(random.setstate, self.python))
        if now.numpy[2:] != self.numpy[2:] or bool((now.numpy[1] != self.numpy[1]).any()):
            calls.append(partial(np.random.set_state, self.numpy))
        if not torch.equal(now.cpu, self.cpu):
            calls.append(partial(torch.set_rng_state, self.cpu))
        for device, (new, old) in enumerate(zip(now.cuda, self.cuda, strict=False)):
            if not torch.equal(new, old):
                calls.append(partial(torch.cuda.set_rng_state, old, device))
        return calls

    def put_back(self) -> None:
        for put_back in self.changes():
            put_back()
