"""Descriptions of values that are the same in every process, from which digests are computed."""

import datetime
import hashlib
import random
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from decimal import Decimal
from enum import Enum
from functools import partial
from operator import is_
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)  # fmt: skip
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from rankscope.core.weights import begin_digests, named_tensors

_MOST, _DEEPEST = 1_000_000, 100
"""The maximum number of values read from a model or its input, and the maximum depth."""
_PLAIN = frozenset({bool, int, float, str, type(None)})
_BY_REPR = (
    int, float, str, complex, bytes, bytearray, Decimal, PurePath, range, slice, re.Pattern,
    datetime.date, datetime.time, datetime.timedelta,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
"""Types whose ``repr`` contains the whole value."""
_BY_NAME = (
    BuiltinFunctionType, MethodDescriptorType, MethodWrapperType, WrapperDescriptorType, np.ufunc,
)  # fmt: skip
_SKIPPED = {*vars(nn.Module()), "_is_full_backward_hook", "_compiled_call_impl"}
_SKIPPED |= {"_hf_hook", "warnings_issued", "generation_config"}
"""Attributes of modules that are read elsewhere, or that do not affect a forward pass."""
_OF_MAKING = ("__init__", "__new__", "__setstate__")
"""Methods that do not affect a forward pass: the objects they create are read instead. PyTorch's
compiler replaces those of every module."""
_LIBRARIES = ("torch", "transformers", "rankscope")
"""Libraries whose functions read no globals set by users, and whose classes rarely change."""


class Description:
    """Descriptions of values that are the same in every process, and the tensors inside them.

    A function is described by its code, defaults, closure, and the globals it reads, as far as
    these are numbers, texts, tensors and functions of its own module; a class by its code and
    numbers; an object by its class and attributes; a module by its path in the model. A value that
    cannot be inspected is described by its type, and ``not_covered`` lists it.
    """

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._missed: dict[tuple[str, str], list[str]] = {}
        self._place, self._depth, self._left = "", 0, _MOST
        self._words: dict[int, tuple[Any, Any]] = {}  # with the value, so that its id is not reused
        self._methods: dict[int, Any] = {}

    def begin(self, words: Any) -> Callable[[], str]:
        """Twelve hex digits for a description and its tensors, with their current values."""
        plain = repr(words).encode()
        read = begin_digests({str(number): tensor for number, tensor in enumerate(self._tensors)})
        return lambda: hashlib.sha256(plain + repr(read()).encode()).hexdigest()[:12]

    def not_covered(self) -> list[str]:
        """The values whose content was not read, with their paths."""
        return [
            f"{places[0]}{f' and {len(places) - 1} others' * (len(places) > 1)} ({kind}): {why}"
            for (kind, why), places in self._missed.items()
        ]

    def name_unread(self, tensors: Mapping[str, Tensor]) -> None:
        """Record which tensors, given by path, have no values in memory."""
        for self._place, tensor in tensors.items():
            if tensor.is_meta:
                self._miss(tensor, "its values are not in memory; only its shape is known")

    def _miss(self, value: Any, why: str) -> str:
        kind = _name(type(value))
        self._missed.setdefault((kind, why), []).append(self._place)
        return kind

    def of(self, value: Any, path: str | None = None) -> Any:
        """The description of a value; ``not_covered`` lists it under its ``path``."""
        if type(value) in _PLAIN:
            return value
        if id(value) in self._words:
            return self._words[id(value)][1]
        self._place = self._place if path is None else path
        if self._depth == _DEEPEST or self._left <= 0:
            return self._miss(value, f"not read beyond {_DEEPEST} levels and {_MOST} values")
        self._depth, self._left = self._depth + 1, self._left - 1
        self._words[id(value)] = value, f"what it is in, at level {self._depth}"
        try:
            words = self._read(value)
        except Exception as error:  # attributes set by users may raise anything
            words = self._miss(value, f"reading it raises {type(error).__name__}")
        self._words[id(value)] = value, words
        self._depth -= 1
        return words

    def _all(self, values: Collection[Any]) -> list[Any]:
        if _PLAIN.issuperset(map(type, values)):
            return list(values)
        return [self.of(value) for value in values]

    def _read(self, value: Any) -> Any:
        match value:
            case Tensor():
                self.name_unread({self._place: value})
                self._tensors.append(value)
                return ["tensor", len(self._tensors)]
            case nn.Module():
                named = named_tensors(value)
                return [self.modules(value), list(named), self._all(named.values())]
            case type():
                return self._class(value)
            case FunctionType():
                return self._function(value, self._all)
            case MethodType():
                return ["method", *self._all((value.__func__, value.__self__))]
            case ModuleType():
                return ["module", value.__name__]
            case torch._ops.OperatorBase() | torch._ops.OpOverloadPacket():
                return ["operator", str(value)]
            case Enum():
                return [_name(type(value)), value.name, self.of(value.value)]
            case np.generic() | np.dtype():
                return repr(value)
            case torch.Generator():
                return ["generator", self.of(value.get_state())]
            case random.Random():
                return ["generator", self.of(value.getstate())]
            case np.random.Generator():
                return ["generator", self.of(value.bit_generator.state)]
            case np.random.RandomState():
                return ["generator", self.of(value.get_state(legacy=False))]
        if isinstance(value, _BY_NAME):
            return [_name(value), self.of(getattr(value, "__self__", None))]
        attributes, content = dict(getattr(value, "__dict__", {})), None
        for kind in _BY_REPR:
            if isinstance(value, kind):
                content = kind.__repr__(value)
                break
        else:
            content = self._content(value)
            for base in type(value).__mro__:
                members = vars(base).items() if "__slots__" in vars(base) else ()
                slots = (name for name, v in members if isinstance(v, MemberDescriptorType))
                attributes |= {name: getattr(value, name) for name in slots if hasattr(value, name)}
        return [self.of(type(value)), content, list(attributes), self._all(attributes.values())]

    def _content(self, value: Any) -> Any:
        """The content of an object besides its attributes."""
        match value:
            case np.ndarray():
                if value.dtype.hasobject:
                    return [value.shape, self._all(value.ravel().tolist())]
                content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
                return [str(value.dtype), value.shape, content]
            case Mapping():
                factory = getattr(value, "default_factory", None)
                return [self._all(value.keys()), self._all(value.values()), self.of(factory)]
            case set() | frozenset():
                return sorted(map(repr, self._all(value)))
            case list() | tuple() | deque():
                return self._all(value)
            case partial():
                return self._all((value.func, value.args, value.keywords))
        bases = (kind for kind in type(value).__mro__ if kind.__base__ is object)
        if any(not vars(base).keys() & {"__dict__", "__slots__"} for base in bases):
            self._miss(value, "only its type is known")
        return None

    # Modules, functions and classes.

    def modules(self, model: nn.Module) -> list[Any]:
        """A module and its submodules without their weights.

        Two models can share every weight and differ in their number of heads. Attributes of our own
        modules that begin with ``_`` are recorded elsewhere.
        """
        words: list[Any] = []
        named: dict[int, tuple[str, nn.Module]] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            first, _ = named.setdefault(id(module), (name, module))
            self._words[id(module)] = module, f"module {first!r}"
            if first != name:
                words.append((name, first))
        for name, module in named.values():
            is_ours = type(module).__module__.startswith("rankscope.")
            words.append((name, self.of(type(module))))
            for key, value in sorted(vars(module).items()):
                if not (key in _SKIPPED or (is_ours and key.startswith("_"))):
                    words.append((key, self.of(value, f"{name}.{key}" if name else key)))
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                words += [self.of(hook, f"a hook of {name}") for hook in _not_ours(hooks)]
        return words

    def around(self) -> list[Any]:
        """Hooks and modes that act on every model."""
        hooks = torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks
        modes = _get_current_function_mode_stack(), _get_current_dispatch_mode_stack()
        return [
            *([self.of(hook, "a global hook") for hook in _not_ours(some)] for some in hooks),
            *([self.of(mode, "a mode of PyTorch's") for mode in some] for some in modes),
        ]

    def _function(self, function: FunctionType, read: Callable[[list[Any]], list[Any]]) -> Any:
        code, names = _code(function.__code__)
        values = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for cell in function.__closure__ or ():
            try:
                values.append(cell.cell_contents)
            except ValueError:  # the cell is still empty
                values.append(None)
        beside, outside = function.__dict__, dict[str, Any]()
        if not _is_of_library(function):
            known = function.__globals__
            outside = {
                name: known[name] for name in names if _is_near(known.get(name, ...), function)
            }
        if not (values or beside or outside):
            return code
        values += [*beside.values(), *outside.values()]
        return [code, list(beside), list(outside), read(values)]

    def _in_methods(self, values: Iterable[Any]) -> list[Any]:
        """The numbers and functions that the methods of a class hold.

        Decorators hold other values, which calls change (checks, caches).
        """
        words: list[Any] = []
        for value in values:
            if isinstance(value, FunctionType):
                if id(value) not in self._methods:
                    self._methods[id(value)] = "a function that this is in"
                    self._methods[id(value)] = self._function(value, self._in_methods)
                words.append(self._methods[id(value)])
            elif value is not None and _is_number(value):
                words.append(self.of(value))
        return words

    def _class(self, kind: type) -> list[Any]:
        if kind.__module__.partition(".")[0] in ("builtins", "rankscope"):  # known by version
            return [_name(kind)]
        bases = [self.of(base) for base in kind.__bases__]
        values = [v.__code__ if type(v) is FunctionType else v for v in vars(kind).values()]
        known, before, content = _CLASSES.get(id(kind), (None, [], ""))
        if known is not kind or len(before) != len(values) or not all(map(is_, before, values)):
            tensors, content = len(self._tensors), self._class_content(kind)
            if _is_of_library(kind) and tensors == len(self._tensors):
                _remember(_CLASSES, kind, (kind, values, content))
        return [_name(kind), content, bases]

    def _class_content(self, kind: type) -> str:
        """A digest of the code and the numbers of a class, without its bases."""
        methods, numbers = {}, []
        for name, value in vars(kind).items():
            if isinstance(value, staticmethod | classmethod):
                value = value.__func__
            elif isinstance(value, property):
                value = value.fget
            if isinstance(value, FunctionType) and name not in _OF_MAKING:
                methods[name] = value
            elif not name.startswith("__") and _is_number(value):
                numbers.append((name, self.of(value)))
        words = [list(methods), self._in_methods(methods.values()), numbers]
        return hashlib.sha256(repr(words).encode()).hexdigest()[:16]


def _not_ours(hooks: Mapping[int, Any]) -> list[Any]:
    return [
        hook
        for hook in hooks.values()
        if not str(getattr(hook, "__module__", "")).startswith("rankscope.")
    ]


def _is_number(value: Any) -> bool:
    return type(value) in _PLAIN or isinstance(value, Tensor | np.ndarray | np.generic)


def _is_near(value: Any, function: FunctionType) -> bool:
    is_function = isinstance(value, FunctionType) and value.__module__ == function.__module__
    return is_function or _is_number(value)


def _is_of_library(value: Any) -> bool:
    return str(value.__module__).partition(".")[0] in _LIBRARIES


_CODES: dict[int, tuple[CodeType, tuple[str, tuple[str, ...]]]] = {}
"""Code by identity, with its digest and the names it uses; code never changes."""
_CLASSES: dict[int, tuple[type, list[Any], str]] = {}
"""Classes of libraries by identity, with their members at the time of the digest."""
_MOST_REMEMBERED = 2**15


def _remember(known: dict[int, Any], value: Any, words: Any) -> None:
    if len(known) > _MOST_REMEMBERED:
        known.clear()
    known[id(value)] = words


def _code(code: CodeType) -> tuple[str, tuple[str, ...]]:
    """A digest of code, and the global names that it and its inner functions read."""
    known, words = _CODES.get(id(code), (None, ("", ())))
    if known is code:
        return words
    inner = [_code(value) for value in code.co_consts if isinstance(value, CodeType)]
    values = [
        sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)
        for value in code.co_consts
        if not isinstance(value, CodeType)
    ]
    names = code.co_qualname, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    content = repr((code.co_code, code.co_flags, names, values, [part[0] for part in inner]))
    outside = dict.fromkeys((*code.co_names, *(name for part in inner for name in part[1])))
    words = hashlib.sha256(content.encode()).hexdigest()[:16], tuple(outside)
    _remember(_CODES, code, (code, words))
    return words


def _name(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") or hasattr(value, "__name__") else type(value)
    name = getattr(named, "__qualname__", None) or getattr(named, "__name__", "")
    return f"{getattr(named, '__module__', '')}.{name}"


def function_name(function: Callable[..., Any]) -> str:
    """The name of a function, and a digest of its code, defaults and closure."""
    called, description = getattr(function, "__qualname__", type(function).__name__), Description()
    digits = description.begin(description.of(function, called))()
    return ", ".join(
        (called, digits[:8], *(f"not covered: {k}" for k in description.not_covered()))
    )


def digest(value: Any) -> str:
    """Twelve hex digits that identify a value of any nesting; the same in every process."""
    return begin_digest(value)()


def begin_digest(value: Any) -> Callable[[], str]:
    """``digest`` of the current value; the returned function synchronises with the device."""
    description = Description()
    return description.begin(description.of(value))
