"""Claims, studies and comparisons: fields of a run → fields of their configuration."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, replace
from functools import cache, partial
from typing import Any, get_args

from rankscope.arguments import check_field, short
from rankscope.ask import Cost
from rankscope.errors import InputError
from rankscope.experiments.catalogue import Entry, Scale
from rankscope.run._asked import Asked, Reader, read_fields
from rankscope.run._convert import convert, hints
from rankscope.run._sources import Sources


@cache
def config_readers(entry: Entry) -> dict[str, Reader]:
    """How each field of an experiment's configuration is read; ``scale`` is quick or paper."""
    kind = entry.module().Config
    found = {each.name: partial(read_field, kind, each) for each in fields(kind) if each.init}
    models = {"models": partial(_models, entry)} if "models" in found else {}
    return {**found, **models, "scale": _scale}


def read_field(kind: type, field: "Field[Any]", value: Any) -> Any:
    """A value as a field of a configuration holds it, checked against its annotation."""
    default = field.default if field.default_factory is MISSING else field.default_factory()
    found = convert(hints(kind)[field.name], value, default)
    check_field(kind, field.name, found)
    return found


def ask_config(entry: Entry, given: Mapping[str, Any], sources: Sources) -> Asked:
    """A run of an experiment whose configuration is all there is to it."""
    read = read_fields(entry, config_readers(entry), given)
    scale = read.pop("scale", "quick")
    if "models" in read:
        read["models"] = _placed(entry, read["models"], sources)
    config = entry.configuration(scale, **read)
    return Asked(entry, config.describe(), lambda: config, lambda: _cost(entry, config))


def _cost(entry: Entry, config: Any) -> Cost | None:
    """What it will take, or took at its usual sizes: more is not known of other sizes.

    A cost of nothing is that of models which are not at hand.
    """
    module = entry.module()
    if hasattr(module, "cost"):
        found: Cost = module.cost(config)
        return None if found == Cost() else found
    is_usual = config == entry.configuration(seed=config.seed)
    return Cost.lasting(entry.seconds) if is_usual and entry.seconds else None


def _models(entry: Entry, value: Any) -> Any:
    """Models by name, or tables of a ``Model``; a comparison takes names alone."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list):
        raise InputError(f"models{short(value)} is no list of models.")
    if entry.id == "compare":
        if not all(isinstance(each, str) for each in listed):
            raise InputError("models: a comparison takes names, folders and files.")
        return listed
    from rankscope.ask import Model, built_in  # needs Transformers: seconds

    return tuple(
        built_in(each)[0] if isinstance(each, str) else convert(Model, each) for each in listed
    )


def _placed(entry: Entry, models: Any, sources: Sources) -> Any:
    """The same models, with folders where they really are."""
    if entry.id != "compare":
        return tuple(replace(each, source=sources.place(str(each.source))) for each in models)
    from rankscope.ask import compared_models  # needs Transformers: seconds

    names = [each.removesuffix("@init") for each in models]
    return compared_models(
        [sources.place(name) + each[len(name) :] for name, each in zip(names, models, strict=True)]
    )


def _scale(value: Any) -> str:
    if value not in get_args(Scale):
        raise InputError(f"scale{short(value)} is unknown; choose {', '.join(get_args(Scale))}.")
    return str(value)
