"""Where figures came from: what would give the same numbers again."""

import dataclasses
import hashlib
import json
import secrets
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby, islice
from operator import itemgetter
from types import CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from rankscope.arguments import checked
from rankscope.core.network import Network
from rankscope.core.tracing._inputs import from_config, is_cache
from rankscope.core.weights import (
    Survey,
    begin_digests,
    named_tensors,
    stamps_of,
    tensor_digests,
    weights_digest,
)
from rankscope.errors import InputError
from rankscope.process import versions

_MOST = 10_000
"""How far a container is followed; what lies beyond is known by its length alone."""
_PLAIN = (bool, int, float, str, type(None))
_PYTORCHS = {*vars(nn.Module()), "_is_full_backward_hook", "warnings_issued"}
"""Attributes of every module, and such as a forward pass writes its warnings into."""
_LARGE = 2**23
"""Bytes from which on a model is not kept alive for its provenance."""


@checked
@dataclass(frozen=True)
class Provenance:
    """Where a trace came from; two with equal provenance have equal numbers.

    ``weights`` names the numbers in every parameter and buffer, ``structure`` what the model is
    made of beside them, ``inputs`` what it was given; ``settings`` says what was measured and how,
    and what was decided about the model on the way.

    A trace works this out when it is first read (or saved, printed, compared), not while the model
    runs. If the model has changed by then, or is gone, ``weights`` and ``structure`` say so in
    place of digests, with a mark that no other trace has, so that it equals no other. Read it right
    after the trace to have it whole.

    Not covered are globals that a function reads, what hooks and objects of classes of one's own
    hold, and single weights written past PyTorch's count of writes (through ``.data`` or NumPy)
    between the trace and the reading.
    """

    model: str
    spec: str | None = None
    seed: int | None = None
    """The one the weights were drawn with, if they are still the same."""
    versions: dict[str, str] = field(default_factory=versions)
    notes: dict[str, str] = field(default_factory=dict)
    network: str | None = None
    """The whole spec in words, where there is one."""
    weights: str | None = None
    dtype: str | None = None
    device: str | None = None
    structure: str | None = None
    inputs: str | None = None
    settings: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        inputs: Any = None,
        *,
        token_mask: Tensor | None = None,
        measured: Tensor | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Self:
        """What is known of a model and of what it is given, now.

        >>> import torch
        >>> from rankscope import Network, Spec
        >>> from rankscope.core.tracing import Provenance
        >>> net, x = Network.random(Spec(2, 2, 8), seed=3), torch.zeros(1, 4, 8)
        >>> origin = Provenance.of(net, x)
        >>> origin.seed, origin.dtype, origin == Provenance.of(net, x), len(origin.weights)
        (3, 'float32', True, 12)
        >>> origin == Provenance.of(net, x + 1)
        False
        """
        masks = {"token_mask": token_mask, "measured": measured}
        named = {name: digest(mask) for name, mask in masks.items() if mask is not None}
        return cls(
            **ModelState(model).sampled().facts,
            inputs=None if inputs is None else digest(inputs),
            settings={**named, **arithmetic(), **(settings or {})},
        )

    @classmethod
    def joined(cls, parts: Sequence[Self], *, of_draws: bool = False) -> Self:
        """That of several batches as one; what they note or decide differently is kept of each.

        ``of_draws`` joins those of several networks that were drawn alike.
        """
        if not parts:
            raise InputError("there is no provenance to join; give one or more.")
        first = parts[0]
        if of_draws:
            seeds = {part.seed for part in parts}
            drawn: dict[str, Any] = {
                "weights": digest([part.weights for part in parts]),
                "seed": seeds.pop() if len(seeds) == 1 else None,
                "spec": first.spec if len({part.spec for part in parts}) == 1 else None,
            }
            parts = [replace(part, **drawn) for part in parts]
            first = parts[0]
        for part in parts:
            same: dict[str, Any] = {
                "inputs": first.inputs,
                "settings": first.settings,
                "notes": first.notes,
            }
            if replace(part, **same) != first:
                raise InputError(
                    f"traces of {first.model} and {part.model} with other weights, or made in "
                    "another way, cannot be joined; join those of one model."
                )
        given = [part.inputs for part in parts]
        whole = given[0] if len(parts) == 1 else digest(given)
        settings = _merged([part.settings for part in parts])
        for name in ("token_mask", "measured"):
            if ";" in settings.get(name, ""):
                settings[name] = digest([part.settings.get(name) for part in parts])
        notes = _merged([part.notes for part in parts])
        return replace(first, inputs=whole, settings=settings, notes=notes)


def _merged(parts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    words: dict[str, dict[str, None]] = {}
    for part in parts:
        for kind, word in part.items():
            words.setdefault(kind, {})[word] = None
    return {kind: "; ".join(each) for kind, each in words.items()}


def arithmetic() -> dict[str, str]:
    """PyTorch's switches that change every number, where they are not as they are by default."""
    settings = {}
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            settings[f"autocast on {device}"] = str(torch.get_autocast_dtype(device))
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # set for one backend, by the newer switches, which it does not know
        backends: Any = torch.backends
        precision = f"{backends.cuda.matmul.fp32_precision} on cuda, "
        precision += f"{backends.mkldnn.matmul.fp32_precision} on cpu"
    return settings if precision == "highest" else {**settings, "float32 products": precision}


class ModelState:
    """A model as it was at one moment: enough to see later whether it is still the same.

    No number is waited for: stamps of all tensors, some numbers of each (``sampled``), and what the
    digest of the structure is made of. A small model is kept alive, so that it is still there; a
    large one is not.
    """

    def __init__(self, model: nn.Module, tensors: Mapping[str, Tensor] | None = None) -> None:
        tensors, loose = tensors or named_tensors(model), list[Tensor]()
        self._structure = _structure(model, loose.append)
        self._names, self._tensors = list(tensors), [*tensors.values(), *loose]
        self.stamps = stamps_of(self._tensors)
        self._model: Callable[[], nn.Module | None] = lambda: model
        self._spec = model.spec if isinstance(model, Network) else None
        self._name = model.name if isinstance(model, Network) else type(model).__name__
        kinds = {tensor.dtype for tensor in tensors.values()}
        real = (str(kind) for kind in kinds if kind.is_floating_point or kind.is_complex)
        self._dtypes = sorted(kind.removeprefix("torch.") for kind in real)
        self._devices = sorted({tensor.device.type for tensor in tensors.values()})

    def sampled(self) -> Self:
        """The same with numbers of its tensors; what was written to them meanwhile is noticed."""
        self._survey = Survey.of(self._tensors)
        self._has_changed = self._survey.stamps != self.stamps
        del self._tensors
        if self._survey.size > _LARGE and (model := self._model()) is not None:
            self._model = weakref.ref(model)
        return self

    @cached_property
    def _words(self) -> str:
        """In words, which tell True from 1 and 2 from 2.0."""
        return repr((self._names, self._structure))

    def is_still(self, now: "ModelState") -> bool:
        """Whether the model is what it was, as far as can be seen."""
        same = self._survey.is_still(now._survey) and self._words == now._words
        return same and not (self._has_changed or now._has_changed)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What a provenance says of the model: read now, if it is what it was, and once."""
        model, seed = self._model(), None
        if (
            model is not None
            and not self._has_changed
            and self.is_still(ModelState(model).sampled())
        ):
            digests = tensor_digests(named_tensors(model))
            weights, structure = weights_digest(digests), _structure_digest(_structure(model))
            seed = model.drawn_with(digests) if isinstance(model, Network) else None
        else:
            why = "gone" if model is None else "changed"
            mark = secrets.token_hex(6)  # what is not known is not equal
            weights = f"not digested: the model was {why} when this was read ({mark})"
            structure = weights
        facts = {"model": self._name, "weights": weights, "structure": structure, "seed": seed}
        facts["dtype"] = ", ".join(self._dtypes) or "none"
        facts["device"] = ", ".join(self._devices) or "none"
        if self._spec is not None:
            facts |= {"spec": self._spec.digest(seed=seed), "network": self._spec.describe()}
        return facts


@dataclass(frozen=True)
class Origin:
    """What a trace keeps until its provenance is read."""

    state: ModelState
    tell: Callable[[dict[str, Any]], Provenance]
    """The provenance, from the facts about the model."""

    @staticmethod
    def begin(
        inputs: Any, masks: Mapping[str, Tensor | None], settings: Mapping[str, str]
    ) -> Callable[[dict[str, Any]], Provenance]:
        """``tell`` for a run that is about to begin; ``settings`` may be added to meanwhile."""
        given, switches = begin_digest(inputs), arithmetic()
        named = {name: begin_digest(mask) for name, mask in masks.items() if mask is not None}

        def tell(facts: dict[str, Any]) -> Provenance:
            digests = {name: finish() for name, finish in named.items()}
            return Provenance(**facts, inputs=given(), settings={**digests, **switches, **settings})

        return tell

    @classmethod
    def joined(cls, parts: Sequence[Any]) -> Self | None:
        """That of several batches of a model, if none has been read and it was the same in all."""
        if None in parts or not all(part.state.is_still(parts[0].state) for part in parts):
            return None
        return cls(
            parts[0].state, lambda facts: Provenance.joined([part.tell(facts) for part in parts])
        )


# What a model is made of beside its weights.


def _structure(model: nn.Module, of_tensor: Callable[[Tensor], Any] | None = None) -> list[Any]:
    """What a model is made of beside its weights: classes, settings, functions.

    Two models can share every weight and differ in their number of heads. Attributes of modules
    count as far as ``described`` sees into them, hooks by their code: what they hold may be what
    they record. Modules of ours keep aside, under ``_``, what is known otherwise.
    """
    lines: list[Any] = []
    held: list[Any] = []
    configs: dict[int, Any] = {}
    seen: dict[int, Any] = {}  # what several modules hold is looked at once
    for name, module in model.named_modules():
        kind, attributes, plain = type(module), vars(module), []
        is_ours = kind.__module__.startswith("rankscope.")
        for key, value in attributes.items():
            if key in _PYTORCHS or (is_ours and key.startswith("_")):
                continue
            if isinstance(value, _PLAIN):
                plain.append((key, value))
                continue
            if id(value) not in seen:
                seen[id(value)] = described(value, of_tensor)
            held.append((name, key, seen[id(value)]))
        lines.append((name, kind.__module__, kind.__qualname__, plain))
        if module._forward_pre_hooks or module._forward_hooks:
            lines += [f"hook of {name}: {words}" for words in _hooks(module)]
        config: Any = attributes.get("config")
        if config is not None and id(config) not in configs and hasattr(type(config), "to_dict"):
            words = _attempt(lambda c: json.dumps(c.to_dict(), sort_keys=True, default=str), config)
            configs[id(config)] = (words, from_config(module, "_attn_implementation"))
    return [lines, held, list(configs.values())]


def _structure_digest(structure: Sequence[Any]) -> str:
    """The same for the same settings, in whatever order a module was given its attributes."""
    lines, held, configs = structure
    words = [
        line if isinstance(line, str) else repr((*line[:-1], sorted(line[-1]))) for line in lines
    ]
    by_module = groupby(held, key=itemgetter(0))
    settings = {
        f"{name}.{key}": value
        for _, own in by_module
        for name, key, value in sorted(own, key=itemgetter(1))
    }
    return digest([words, settings, configs])


def _hooks(module: nn.Module) -> Iterator[str]:
    """Forward hooks that are not ours, which may change what a module gives."""
    for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
        if not str(hook.__module__).startswith("rankscope."):
            code = getattr(hook, "__code__", None)
            name = getattr(hook, "__qualname__", type(hook).__qualname__)
            yield f"{name}, {digest(described(code))}"


def _attempt(read: Callable[..., Any], *of: Any) -> Any:
    """What is read, or that it cannot be: what users hang on their modules may raise anything."""
    try:
        return read(*of)
    except Exception as error:
        return f"unreadable: {type(error).__name__}"


def described(value: Any, of_tensor: Callable[[Tensor], Any] | None = None, depth: int = 6) -> Any:
    """A value as plain values, tensors, and containers of them, the same in every process.

    Functions are their code, defaults and closures; modules and objects of classes of one's own
    only their class, unless they are dataclasses. What functions read from globals is not seen.
    ``of_tensor`` gives what stands in a tensor's place.
    """
    if isinstance(value, np.ndarray) and value.dtype != object:
        array = torch.from_numpy(np.ascontiguousarray(value))
        return array if of_tensor is None else digest(array)  # PyTorch counts no write to it
    if isinstance(value, Tensor):
        return value if of_tensor is None else of_tensor(value)
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, torch.dtype | torch.device | complex | bytes | np.generic):
        return repr(value)
    kind = _kind_of(value if isinstance(value, type) else type(value))
    if depth == 0 or isinstance(value, nn.Module | type):
        return kind
    parts = _attempt(_parts_of, value)
    if isinstance(parts, str):
        return [kind, parts]
    return [kind, [described(part, of_tensor, depth - 1) for part in parts]]


def _parts_of(value: Any) -> list[Any]:
    """The parts of a value in a fixed order; nothing for what cannot be looked into."""
    match value:
        case CodeType():
            return [value.co_code, value.co_names, *value.co_consts]
        case FunctionType():
            kept = [value.__defaults__, value.__kwdefaults__, _closed_over(value)]
            return [value.__qualname__, value.__code__, *kept]
        case Mapping():
            return [len(value), *islice(([str(key), each] for key, each in value.items()), _MOST)]
        case set() | frozenset():
            return sorted(map(repr, value))
        case list() | tuple() | deque():
            return [len(value), *islice(value, _MOST)]
        case MethodType():
            return [value.__func__, value.__self__]
        case partial():
            return [value.func, value.args, value.keywords]
        case SimpleNamespace():
            return [vars(value)]
        case _ if dataclasses.is_dataclass(value):
            names = [one.name for one in dataclasses.fields(value)]
            return [
                [name, _attempt(lambda name=name: getattr(value, name, None))] for name in names
            ]
        case _ if callable(value):
            return [_kind_of(value), getattr(value, "__dict__", {})]
    return []


def _closed_over(function: FunctionType) -> list[Any]:
    """What a function closes over; a cell that is not filled yet holds nothing."""
    contents = []
    for cell in function.__closure__ or ():
        try:
            contents.append(cell.cell_contents)
        except ValueError:
            contents.append(None)
    return contents


def _kind_of(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") or hasattr(value, "__name__") else type(value)
    name = getattr(named, "__qualname__", None) or getattr(named, "__name__", "")
    return f"{getattr(named, '__module__', '')}.{name}"


# Short names for values: equal for equal ones, in every process.


def function_name(function: Callable[..., Any]) -> str:
    """What a function is called, and a digest of its code, its defaults and its closure."""
    called = getattr(function, "__qualname__", type(function).__name__)
    return f"{called}, {digest(described(function))[:8]}"


def digest(value: Any) -> str:
    """Twelve hex digits that name tensors and plain values, however they are nested."""
    return begin_digest(value)()


def begin_digest(value: Any) -> Callable[[], str]:
    """``digest`` of a value as it is now; no device is waited for until it is called."""
    leaves = dict(_leaves(value))
    tensors = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, Tensor)}
    plain = {name: leaf for name, leaf in leaves.items() if name not in tensors}
    read = begin_digests(tensors)

    def finish() -> str:
        content = json.dumps([plain, read()], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    return finish


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Tensor | str | int | float | None):
        yield place, value
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield place, torch.from_numpy(np.ascontiguousarray(value))
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{place}.{name}")
    elif isinstance(value, Sequence):
        for number, inner in enumerate(value):
            yield from _leaves(inner, f"{place}[{number}]")
    elif is_cache(value):
        yield from _leaves({"": type(value).__name__, **vars(value)}, place)
    else:  # its repr may hold an address, which differs from run to run
        yield place, type(value).__name__
