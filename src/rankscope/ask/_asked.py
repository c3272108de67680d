"""A question from its given fields: its key, its cost and its run."""

import types
import typing
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from functools import cache, lru_cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, get_args, get_origin

import torch

from rankscope.arguments import check_field, short
from rankscope.ask._estimates import Cost
from rankscope.ask._setup import Setup
from rankscope.ask._sources import Sources, nearest
from rankscope.ask._subject import outline, refuse_unfit
from rankscope.ask._words import LEFT_OUT, Asks, Dialect
from rankscope.core.checks import devices
from rankscope.core.network import ABLATIONS, SCORES, ScoreKind, Spec
from rankscope.errors import InputError, RankscopeError
from rankscope.models.checkpoints import INIT
from rankscope.process import OnStep, fingerprint, plain, silent
from rankscope.version import __version__

if TYPE_CHECKING:
    from rankscope.results import Result

Reader = Callable[[Any], Any]
"""Converts a written value to that of a field; raises an error that names the field."""

SPEC_FIELDS: Final = tuple(slot.name for slot in fields(Spec))
_UNKNOWN = Spec(1, 1, 1)
"""Stands for the spec of a model that is unknown until the model is loaded."""


class Experiment(Hashable, Protocol):
    """The interface of an experiment."""

    @property
    def id(self) -> str: ...
    @property
    def asks(self) -> Asks: ...
    @property
    def seconds(self) -> float: ...
    def module(self) -> Any: ...
    def configuration(self, scale: Any = "quick", **fields: Any) -> Any: ...
    def run(self, config: Any, on_step: OnStep = silent) -> "Result": ...


@dataclass(frozen=True)
class Asked:
    """An experiment, what its numbers depend on, its configuration, and what it will cost.

    ``configure`` makes the configuration to run, which for a question draws or loads the network;
    ``cost`` is None where it is not known.
    """

    experiment: Experiment
    depends_on: Callable[[], Any]
    configure: Callable[[], Any]
    cost: Callable[[], Cost | None]

    @property
    def key(self) -> str:
        """The key of the result."""
        return run_key(self.experiment.id, self.depends_on())

    def run(self, on_step: OnStep = silent) -> "Result":
        """Run the experiment."""
        return self.experiment.run(self.configure(), on_step)


def run_key(experiment: str, depends_on: Any) -> str:
    """Sixteen hex digits of an experiment, all it depends on, and this version of the code.

    Among a million runs, the probability of a collision is one in thirty million.
    """
    return fingerprint([experiment, __version__, _alike(depends_on)], digits=16)


def _alike(value: Any) -> Any:
    """The same value with 1 in place of 1.0: a number field accepts both with the same meaning."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {name: _alike(inner) for name, inner in value.items()}
    return [_alike(inner) for inner in value] if isinstance(value, list | tuple) else value


def ask(experiment: Experiment, said: Mapping[str, Any], sources: Sources | None = None) -> Asked:
    """An experiment with these fields; an error names an invalid one.

    Omitted fields have the defaults of the command line.
    """
    sources = sources or Sources()
    known = readers(experiment)
    for name in said:
        if name not in known:
            listed = nearest(name, tuple(known))
            raise InputError(f"{experiment.id} has no field {name}; {listed}")
    work_out = _ask_question if "subject" in _slots(experiment) else _ask_config
    return work_out(experiment, said, sources)


@cache
def readers(experiment: Experiment) -> dict[str, Reader]:
    """The reader of each field of an experiment; ``depth`` is an alias of ``layers``."""
    config = experiment.module().Config
    slots = {name: slot for name, slot in _slots(experiment).items() if slot.init}
    config_readers: dict[str, Reader] = {
        name: partial(read_config_field, config, slot) for name, slot in slots.items()
    }
    if config_readers.pop("subject", None):
        shared = setup_readers()
        return {"depth": shared["layers"], **shared, **config_readers}
    models = {"models": partial(_models, experiment)} if "models" in config_readers else {}
    return {**config_readers, **models, "scale": str}


@cache
def _slots(experiment: Experiment) -> "dict[str, Field[Any]]":
    return {slot.name: slot for slot in fields(experiment.module().Config)}


def _ask_question(experiment: Experiment, said: Mapping[str, Any], sources: Sources) -> Asked:
    slots, asks = _slots(experiment), experiment.asks
    if "depth" in said and "depth" not in slots:
        if "layers" in said:
            raise InputError("depth is an alias of layers; give one of them.")
        said = {("layers" if name == "depth" else name): value for name, value in said.items()}
    setup = Setup.of({name: said[name] for name in said if name not in slots}, asks, sources)
    known = readers(experiment)
    options = {name: read(known[name], said[name]) for name in said if name in slots}
    if asks.seeded:
        options.setdefault(asks.seeded, setup.seed)
    masks = options.get("masks", slots["masks"].default) if "masks" in slots else ()
    if "masks" in slots:
        options["masks"] = tuple(map(setup.draw_mask, masks))
    shapes = setup.outline()
    stand_in = shapes or outline(_UNKNOWN, samples=1, tokens=2)
    config = experiment.configuration(subject=stand_in, **options)
    for refusal in _refusals(experiment, setup, config):
        raise InputError(refusal)

    def configure() -> Any:
        seeded = bool(asks.seeded) or Setup.is_drawn(*masks)
        subject = setup.subject(seeded=seeded, any_model=asks.any_model)
        if not asks.unfit_text:
            refuse_unfit(subject.name, subject.check)
        return replace(config, subject=subject)

    def depends_on() -> dict[str, Any]:
        # The stand-in for an unknown network has another number of layers.
        return {**setup.key(), "options": config.describe() if shapes else plain(options)}

    def cost() -> Cost | None:
        return _cost(experiment, config) if shapes else None

    return Asked(experiment, depends_on, configure, cost)


def _refusals(experiment: Experiment, setup: Setup, config: Any) -> Iterator[str]:
    """Why a question cannot be asked about this setup."""
    asks, id_, dialect = experiment.asks, experiment.id, setup.sources.dialect
    if not setup.special_tokens:
        counting = getattr(experiment.module(), "all_tokens", None)
        if why := asks.all_tokens or (counting(config) if counting else ""):
            said = dialect.said("special_tokens", False)
            yield f"{said} is not available for {id_}: {why}; omit it."
    if asks.wide and setup.dtype in ("bfloat16", "float16"):
        said = dialect.said("dtype", setup.dtype)
        yield f"{said} is not available for {id_}: {asks.wide}; use float32 or float64."
    if hasattr(config, "masks"):
        mask, masks = dialect.name("mask"), dialect.name("masks")
        if setup.mask is not None:
            yield f"{mask} sets one mask; this question compares those in {masks}."
        if not config.masks:
            yield f"{masks} is empty; try full,causal,window:8."


def _ask_config(experiment: Experiment, said: Mapping[str, Any], sources: Sources) -> Asked:
    """A claim, a study or a comparison, which depends only on its configuration."""
    known = readers(experiment)
    options = {name: read(known[name], value) for name, value in said.items()}
    scale = options.pop("scale", "quick")
    if "models" in options:  # with resolved folders
        options["models"] = _placed(experiment, options["models"], sources)
    config = experiment.configuration(scale, **options)
    return Asked(experiment, config.describe, lambda: config, lambda: _cost(experiment, config))


def _cost(experiment: Experiment, config: Any) -> Cost | None:
    """The estimated cost, or the measured cost at the default sizes; None if neither is known.

    A cost of zero means that the models are not available.
    """
    module = experiment.module()
    if hasattr(module, "cost"):
        try:
            cost: Cost = module.cost(config)
        except RankscopeError:  # the model has to be loaded first
            return None
        return None if cost == Cost() else cost
    is_usual = config == experiment.configuration(seed=config.seed)
    return Cost.lasting(experiment.seconds) if is_usual and experiment.seconds else None


def _models(experiment: Experiment, value: Any) -> Any:
    """Models by name, or tables of a ``Model``; a comparison accepts only names."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list):
        raise InputError(f"models{short(value)} is not a list of models.")
    if hasattr(experiment.module(), "compared_models"):
        if not all(isinstance(model, str) for model in listed):
            raise InputError("models: a comparison accepts only names, folders and files.")
        return listed
    from rankscope.ask._models import Model, built_in

    return tuple(
        built_in(model)[0] if isinstance(model, str) else convert(Model, model) for model in listed
    )


def _placed(experiment: Experiment, models: Any, sources: Sources) -> Any:
    compared = getattr(experiment.module(), "compared_models", None)
    if compared is None:
        return tuple(replace(model, source=sources.locate(str(model.source))) for model in models)
    names = [(model.removesuffix(INIT), model.endswith(INIT)) for model in models]
    return compared([sources.locate(name, latest=False) + INIT * new for name, new in names])


def read_setup(name: str, value: Any, dialect: Dialect) -> Any:
    """Read a field of a setup or of its network; errors use the notation of ``dialect``."""
    try:
        return read(setup_readers()[name], value)
    except RankscopeError as error:
        said = f"{name}{short(value)}"
        words = str(error)
        if words.startswith(said):
            words = dialect.said(name, value) + words[len(said) :]
        raise type(error)(words) from None


@cache
def setup_readers() -> dict[str, Reader]:
    """The reader of each field of a spec and of a setup."""
    skipped = ("network", "given", "sources")
    of_setup = {
        slot.name: partial(_checked, slot.name)
        for slot in fields(Setup)
        if slot.name not in skipped
    }
    special = {"variant": _variant, "without": _without, "device": _device, "init": _init}
    return {**{name: partial(_spec_field, name) for name in SPEC_FIELDS}, **of_setup, **special}


def read_config_field(kind: type, slot: "Field[Any]", value: Any) -> Any:
    """Convert a value to that of a configuration's field, and check it against the annotation."""
    default = slot.default if slot.default_factory is MISSING else slot.default_factory()
    converted = convert(hints(kind)[slot.name], value, default)
    check_field(kind, slot.name, converted)
    if "check" in slot.metadata:
        slot.metadata["check"](converted)
    return converted


def read(reader: Reader, value: Any) -> Any:
    """Read a value, with a cache for all runs."""
    if isinstance(value, list | Mapping):
        return reader(value)
    return _read(reader, type(value).__name__, value)


@lru_cache(maxsize=4096)
def _read(reader: Reader, kind: str, value: Any) -> Any:
    del kind  # distinguishes 1, 1.0 and True in the cache
    return reader(value)


def _checked(name: str, value: Any) -> Any:
    check_field(Setup, name, value)
    return value


def _spec_field(name: str, value: Any) -> Any:
    """Convert and check a field of a spec by itself, since other fields may be templates."""
    converted = convert(get_args(hints(Spec)[name])[0], value)
    vars(Spec)[name].__set__(SimpleNamespace(), converted)
    return converted


def _init(value: Any) -> Any:
    """The name of an initialisation, or a standard deviation, possibly written as text."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value)
    return _spec_field("init", value)


def _variant(value: Any) -> str:
    if not isinstance(value, str) or value not in LEFT_OUT:
        raise InputError(f"variant{short(value)} is unknown; choose one of {', '.join(LEFT_OUT)}.")
    return value


def _without(value: Any) -> tuple[str, ...]:
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(part, str) for part in listed):
        raise InputError(f'without{short(value)} is not a list of parts; write "skip,mlp" or "".')
    parts = tuple(dict.fromkeys(part.strip() for part in listed if part.strip()))
    for part in parts:
        if part not in ABLATIONS:
            known = ", ".join(ABLATIONS)
            raise InputError(f"without: {part!r} is not a part of a network; choose {known}.")
    return parts


def _device(value: Any) -> str | None:
    """The name of a device of PyTorch; its availability is checked when the run starts.

    ``"auto"`` is the first GPU, or the CPU where there is none.
    """
    if value == "auto":
        return next((name for name in devices() if name != "cpu"), "cpu")
    try:
        return None if value is None else str(torch.device(value))
    except (RuntimeError, TypeError):
        raise InputError(
            f"device{short(value)} is unknown; choose auto, cpu, cuda, cuda:1, mps."
        ) from None


def convert(kind: Any, value: Any, default: Any = None) -> Any:
    """Convert a value to the type of an annotation; values that do not fit are left to its check.

    >>> convert(tuple[float, ...], [1, 2])
    (1.0, 2.0)

    A single text becomes a list. A table becomes a frozen record, based on the ``default`` if there
    is one.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return convert(inner[0], value, default)
    if origin in (typing.Union, types.UnionType):
        return convert(_chosen(inner, value), value, default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**1023 else value
    if kind is ScoreKind:
        return _score(value)
    if is_dataclass(kind) and isinstance(value, Mapping):
        return _record(kind, value, default)
    if origin in (tuple, Sequence) and isinstance(value, list):
        kinds = inner[:1] * len(value) if inner[1:] in ((), (...,)) else inner
        rest = value[len(kinds) :]  # too many: the check says so
        return (*(convert(k, v) for k, v in zip(kinds, value, strict=False)), *rest)
    if origin is tuple and inner[0] is str and isinstance(value, str):
        return (value,)
    return value


def _chosen(kinds: tuple[Any, ...], value: Any) -> Any:
    """The member of a union that a value is meant for."""
    if ScoreKind in kinds:
        return ScoreKind
    if isinstance(value, Mapping):
        return next((kind for kind in kinds if is_dataclass(kind)), None)
    if isinstance(value, list):
        return next((kind for kind in kinds if get_origin(kind) in (tuple, Sequence)), None)
    return float if float in kinds and int not in kinds else None


def _record(kind: Any, table: Mapping[str, Any], default: Any) -> Any:
    known = {slot.name: slot for slot in fields(kind) if slot.init}
    for name in table:
        if name not in known:
            raise InputError(f"{kind.__name__} has no field {name}; {nearest(name, tuple(known))}")
    base = default if isinstance(default, kind) else None
    values = {
        name: convert(hints(kind)[name], value, getattr(base, name, None))
        for name, value in table.items()
    }
    if base is not None:
        return replace(base, **values)
    for name, slot in known.items():
        if name not in values and slot.default is MISSING and slot.default_factory is MISSING:
            raise InputError(f"got {dict(table)}; {kind.__name__} also needs {name}.")
    return kind(**values)


@cache
def hints(kind: Any) -> dict[str, Any]:
    """The annotations of the fields of a record."""
    return typing.get_type_hints(kind, include_extras=True)


def _score(value: Any) -> Any:
    """A score from its name, or from a table with its ``kind`` and fields."""
    table = {"kind": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping) or table.get("kind") == "dot":
        return value
    known = {_letters(entry.words): entry.kind for entry in SCORES.values() if entry.kind}
    name = _letters(str(table.get("kind", "")))
    if name not in known:
        listed = ", ".join(["dot", *known])
        raise InputError(f"got {value!r}, expected a score, or a table whose kind is {listed}.")
    return _record(known[name], {k: v for k, v in table.items() if k != "kind"}, None)


def _letters(words: str) -> str:
    """A normalised name, the same for relative_bias, RelativeBias and relative bias."""
    return "".join(letter for letter in words.lower() if letter.isalnum())
