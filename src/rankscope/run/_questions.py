"""Questions: fields of a run → the subject and the question's own options.

A run is what ``rankscope trace`` and the others give for the same settings. What is not said is
therefore as on the command line (``rankscope.experiments.usual``): BERT-base's shape, with norms
after each sum and an epsilon of 1e-12, on bundled passages; ``deep``, ``bounds`` and ``masks`` are
about attention alone.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from rankscope.ask import Cost, Subject, outline
from rankscope.core.checks import usable_device
from rankscope.core.masks import as_mask
from rankscope.core.network import Spec
from rankscope.core.tracing import choose_measures
from rankscope.errors import InputError
from rankscope.experiments.catalogue import Entry
from rankscope.experiments.usual import usual
from rankscope.experiments.variants import LEFT_OUT
from rankscope.process.fingerprints import plain
from rankscope.run._asked import Asked, Reader, read_fields
from rankscope.run._configs import read_field
from rankscope.run._setup import SPEC_FIELDS, Setup, in_order, make_spec, setup_readers
from rankscope.run._sources import Sources
from rankscope.run._subjects import Design, Model

_CALLED = {
    "paths": {"heads": "by_head"},
    "deep": {"norm": "in_norm"},
    "predict": {"seed": "draw_seed"},
    "diagnose": {"seed": "reference_seed"},
    "advise": {"seed": "draw_seed"},
}
"""Options of questions whose name is that of a field of the network, and what they are called."""
_OF_ALL_TOKENS = ("bounds", "masks", "predict", "advise")
_DESCRIBE = {"norm": ("norm", "norm_place", "norm_eps"), "mlp": ("mlp_ratio",), "skip": ("skip",)}
"""Fields that change nothing where a part is left out."""
_SMALL = Spec(1, 1, 1)
"""Stands in for the structure of a model that is not known before it is loaded."""


@cache
def question_readers(entry: Entry) -> dict[str, Reader]:
    """How each field of a question is read: the network's, the input's, its own."""
    kind = entry.module().Config
    called = _CALLED.get(entry.id, {})
    own: dict[str, Reader] = {
        called.get(each.name, each.name): partial(read_field, kind, each)
        for each in fields(kind)
        if each.name != "subject"
    }
    readers = {**setup_readers(), **own}
    if "metrics" in own:
        readers["metrics"] = partial(_metrics, own["metrics"])
    return readers if "depth" in own else {**readers, "depth": readers["layers"]}


def ask_question(entry: Entry, given: Mapping[str, Any], sources: Sources) -> Asked:
    """A run of a question."""
    readers = question_readers(entry)
    if "depth" in given and readers["depth"] is readers["layers"]:
        if "layers" in given:
            raise InputError("depth is another word for layers; give one of them.")
        given = {("layers" if name == "depth" else name): given[name] for name in given}
    read = read_fields(entry, readers, given)
    setup = Setup(**_part(read, tuple(each.name for each in fields(Setup))))
    spec_fields = _part(read, SPEC_FIELDS)
    parts = _parts_left_out(entry, setup, spec_fields)
    options = _options(entry, read, setup)
    about = _about(entry, setup, spec_fields, sources)
    _refuse_unsuited(entry, setup, options)
    if entry.id == "masks" and "mask" in spec_fields:
        raise InputError("mask names one mask; here masks names those to compare.")
    known = about.outline()
    config = entry.configuration(subject=known or outline(_SMALL, samples=1, tokens=2), **options)
    return Asked(
        entry,
        {
            **about.describe(),
            "parts": parts,
            "texts": about.texts.digest,
            "special_tokens": setup.special_tokens,
            "dtype": setup.dtype,
            "device": setup.device or "cpu",
            # How deep an unknown network is, its stand-in does not know.
            "options": config.describe() if known else plain(options),
        },
        lambda: replace(config, subject=_subject(entry, about, parts)),
        lambda: None if known is None else _cost(entry, config, about),
    )


def _part(read: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: read[name] for name in names if name in read}


def _options(entry: Entry, read: Mapping[str, Any], setup: Setup) -> dict[str, Any]:
    """The fields of the question's own configuration, under the names they have there."""
    called = _CALLED.get(entry.id, {})
    names = [each.name for each in fields(entry.module().Config) if each.name != "subject"]
    found = {name: read[called.get(name, name)] for name in names if called.get(name, name) in read}
    if entry.id == "advise":
        found.setdefault("seed", setup.seed)
    if "masks" in names:
        masks = found.get("masks", entry.module().MASKS)
        found["masks"] = tuple(as_mask(each, seed=setup.seed) for each in masks)
    return found


def _about(
    entry: Entry, setup: Setup, spec_fields: dict[str, Any], sources: Sources
) -> Design | Model:
    usually = usual(entry.id)
    texts = sources.texts(setup.text, setup.passages or usually.passages)
    if setup.model is None:
        for name in ("at_init", "pickled", "tokenizer"):
            if getattr(setup, name):
                raise InputError(f"{name} is about a model, and none was named.")
        design = make_spec(spec_fields, setup.seed)
        return Design(design, setup, texts, setup.length or usually.length)
    place = sources.place(setup.model)
    for name in spec_fields:
        if name != "mask":
            raise InputError(f"{name} describes a random network, but a model was named.")
    if setup.at_init and setup.pickled:
        raise InputError("pickled is about pretrained weights, and at_init draws new ones.")
    if setup.tokenizer is not None:
        setup = replace(setup, tokenizer=sources.place(setup.tokenizer))
    contents, spec = sources.contents(place, setup.tokenizer), sources.spec(place)
    if spec is not None and not Path(place).is_dir() and not setup.at_init:
        raise InputError(
            f"model={setup.model!r} is built in and has no weights of its own; add at_init = true."
        )
    return Model(place, contents, spec, spec_fields.get("mask"), setup, texts)


def _parts_left_out(entry: Entry, setup: Setup, spec_fields: dict[str, Any]) -> tuple[str, ...]:
    if setup.variant is not None and setup.without is not None:
        raise InputError("variant and without both say what is left out; give one of them.")
    if setup.variant is not None:
        return in_order(LEFT_OUT[setup.variant])
    if setup.without is not None:
        return setup.without
    usually = usual(entry.id).without
    parts = in_order(usually.split(",") if usually else ())
    for part in parts:
        for name in _DESCRIBE[part]:
            if name in spec_fields:
                raise InputError(
                    f"{name} changes nothing: {entry.id} leaves out {usually} unless told "
                    'otherwise; add without = "" to keep every part.'
                )
    return parts


def _refuse_unsuited(entry: Entry, setup: Setup, options: Mapping[str, Any]) -> None:
    asked = choose_measures(options["metrics"]) if "metrics" in options else ()
    of_attention = [each.name for each in asked if each.of == "attention"]
    if not setup.special_tokens and (entry.id in _OF_ALL_TOKENS or of_attention):
        raise InputError(
            f"special_tokens=False leaves tokens out of the figures, and "
            f"{', '.join(of_attention) or entry.id} is about all of them; leave it out."
        )
    if entry.id == "paths" and setup.dtype in ("bfloat16", "float16"):
        raise InputError(
            f"dtype={setup.dtype!r}: sums over many paths mean nothing in it; use float32 or "
            "float64."
        )


def _metrics(read: Reader, value: Any) -> Any:
    found = read(value)
    choose_measures(found)
    return found


def _subject(entry: Entry, about: Design | Model, parts: tuple[str, ...]) -> Subject:
    """The subject, unless its model knows hardly a word of what it is to read."""
    usable_device("device", about.setup.device)
    found = about.subject().without(*parts)
    if entry.id != "diagnose" and found.check is not None and not found.check.fits:
        raise InputError(f"{found.name}: {found.check.warnings()[0]} Give text that fits.")
    return found


def _cost(entry: Entry, config: Any, about: Design | Model) -> Cost | None:
    """What the question will take; which changes suit a model is known once it is loaded."""
    if entry.id == "advise" and isinstance(about, Model):
        return None
    found: Cost = entry.module().cost(config)
    return found
