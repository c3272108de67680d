"""What a question is asked about, as a grid writes it: a design or a model, and what it reads."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache, partial
from types import SimpleNamespace
from typing import Annotated, Any, Literal, get_args

import torch

from rankscope.arguments import Count, Range, check_field, short
from rankscope.core.masks import as_mask
from rankscope.core.network import ABLATIONS, Spec
from rankscope.errors import InputError
from rankscope.experiments.usual import HEADS, LAYERS, NORM_EPS, NORM_PLACE, WIDTH
from rankscope.experiments.variants import LEFT_OUT
from rankscope.run._asked import Reader
from rankscope.run._convert import convert, hints

SPEC_FIELDS = tuple(each.name for each in fields(Spec))


@dataclass(frozen=True)
class Setup:
    """Everything about the subject of a question that is no field of a ``Spec``."""

    model: str | None = None
    """A folder, a Hub id or, with ``at_init``, a built-in name, instead of a random network."""
    at_init: bool = False
    pickled: bool = False
    tokenizer: str | None = None
    variant: str | None = None
    without: tuple[str, ...] | None = None
    text: str | Mapping[str, Any] | None = None
    """A file, a paragraph a sample, or ``{ sentences = [...] }``; bundled passages unless given."""
    passages: Count | None = None
    length: Annotated[int, Range(3, 2**31 - 1)] | None = None
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = "float32"
    device: str | None = None
    special_tokens: bool = True
    seed: Annotated[int, Range(0, 2**63 - 2**20 - 1)] = 0
    """Of weights, embedding and random masks; some experiments count on from it."""


@cache
def setup_readers() -> dict[str, Reader]:
    """How each field of a design and of a setup is read."""
    of_spec = {name: partial(_read_spec, name) for name in SPEC_FIELDS}
    of_setup = {each.name: partial(_read_setup, each.name) for each in fields(Setup)}
    special = {"variant": _variant, "without": _without, "device": _device}
    return {**of_spec, **of_setup, **special}


def make_spec(given: Mapping[str, Any], seed: int) -> Spec:
    """The design; masks that are drawn and name no seed of their own follow the run's."""
    shape = {"layers": LAYERS, "heads": HEADS, "width": WIDTH}
    norms = {"norm_place": NORM_PLACE, "norm_eps": NORM_EPS}
    drawn: dict[str, Any] = {}
    if "mask" in given:
        drawn["mask"] = as_mask(given["mask"], seed=seed)
    if given.get("layer_masks") is not None:
        drawn["layer_masks"] = [as_mask(each, seed=seed) for each in given["layer_masks"]]
    return Spec(**{**shape, **norms, **given, **drawn})


def _read_spec(name: str, value: Any) -> Any:
    """A value that a field of a spec takes; tried on nothing, since others may be templates."""
    given = get_args(hints(Spec)[name])[0]
    found = convert(given, value)
    vars(Spec)[name].__set__(SimpleNamespace(), found)
    return found


def _read_setup(name: str, value: Any) -> Any:
    check_field(Setup, name, value)
    return value


def _variant(value: Any) -> str:
    if not isinstance(value, str) or value not in LEFT_OUT:
        raise InputError(f"variant{short(value)} is unknown; choose one of {', '.join(LEFT_OUT)}.")
    return value


def _without(value: Any) -> tuple[str, ...]:
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise InputError(f'without{short(value)} is no list of parts; write "skip,mlp" or "".')
    parts = [each.strip() for each in listed if each.strip()]
    for part in parts:
        if part not in ABLATIONS:
            raise InputError(f"without: a network has no part {part!r}; choose {_PARTS}.")
    return in_order(parts)


def in_order(parts: Iterable[str]) -> tuple[str, ...]:
    """Parts of a network, each once; in which order they go is all the same."""
    return tuple(sorted(set(parts), key=ABLATIONS.index))


_PARTS = ", ".join(ABLATIONS)


def _device(value: Any) -> str:
    """A device by a name that torch knows; whether it is there, whoever runs it finds out."""
    try:
        return str(torch.device(value))
    except (RuntimeError, TypeError):
        raise InputError(
            f"device{short(value)} is unknown; choose cpu, cuda, cuda:1, mps."
        ) from None
