"""From a model, wherever it is, to what a question is asked about: the model and what it reads."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from rankscope.arguments import checked
from rankscope.core.checks import whole
from rankscope.errors import InputError
from rankscope.experiments.subject import Subject
from rankscope.models.families import BlockInput, Loaded, load
from rankscope.models.text import InputCheck, passages

_USUAL = 128
"""Tokens of a text at most, unless told otherwise."""


@checked
def model_subject(
    source: str | Path | nn.Module | Loaded,
    texts: Sequence[str] | None = None,
    *,
    ids: Sequence[Sequence[int]] | None = None,
    length: int | None = None,
    samples: int = 32,
    special_tokens: bool = True,
    seed: int = 0,
    batch_size: int = 8,
    read_from: str = "",
    pretrained: bool = False,
    **loading: Any,
) -> Subject:
    """A model, verified, and what it reads, checked token by token (``Subject.check``).

    >>> subject = model_subject("bert-base", init=True, samples=1, length=8)
    >>> subject.check.tokens[0][:3]
    ('[CLS]', 'mary', 'anning')

    ``source`` is whatever ``rankscope.load`` takes, or what it returns; ``loading`` are its
    options. Without ``texts`` or token ``ids`` the first ``samples`` bundled passages are read; a
    vision model sees as many images of noise. Texts and ids are cut to ``length`` tokens: 128, or
    as many as the model has positions, unless given.
    ``special_tokens=False`` leaves CLS and the like out of the figures; the model still sees them.
    A text that does not fit the model is read all the same: ``check.fits`` says so. ``read_from``
    names the source of the texts or ids in the provenance; ``pretrained`` says of a loaded model
    what is known of one that is named.
    """
    if length is not None:
        whole("length", length, least=1)
    whole("samples", samples, least=1)
    loaded = _loaded(source, seed, loading)
    if not special_tokens and ids is not None and loaded.tokenizer is None:
        raise InputError(
            "without a tokeniser it is not known which ids are special, so they cannot be left "
            "out (special_tokens=False, --no-special-tokens); give one (tokenizer, --tokenizer)."
        )
    length = _usual_length(loaded) if length is None else length
    read, check = _read(loaded, texts, ids, length=length, samples=samples, seed=seed)
    drawn, named = loaded.network.seed is not None, isinstance(source, str | Path)
    origin = "random" if drawn else "pretrained" if named or pretrained else ""
    return Subject(
        loaded.network,
        read.x,
        read.token_mask,
        None if special_tokens else read.token_mask & ~read.special_mask,
        title=_title(loaded, "at initialisation" if drawn else origin),
        about={
            **({"origin": origin} if origin else {}),
            "input": check.summary(read_from or _read_from(check, texts)),
            "special tokens": "counted" if special_tokens else "left out of the figures",
            **_unknown(check),
        },
        batch_size=batch_size,
        check=check,
        twin=lambda seed: loaded.reinitialised(seed=seed).network,
    )


def _usual_length(loaded: Loaded) -> int:
    if loaded.sees_images:
        return _USUAL
    return min(_USUAL, loaded.family.most_tokens(loaded.body.config) or _USUAL)


def _loaded(source: str | Path | nn.Module | Loaded, seed: int, loading: dict[str, Any]) -> Loaded:
    if not isinstance(source, Loaded):
        return load(source, seed=seed, **loading)
    given = [name for name, value in loading.items() if value not in (None, False)]
    if given:
        raise InputError(f"{given[0]} is about loading; {source.name} is loaded already.")
    return source


def _read(
    loaded: Loaded,
    texts: Sequence[str] | None,
    ids: Sequence[Sequence[int]] | None,
    *,
    length: int,
    samples: int,
    seed: int,
) -> tuple[BlockInput, InputCheck]:
    if texts is not None and ids is not None:
        raise InputError("texts and ids are two inputs; give one of them.")
    if loaded.sees_images:
        if texts is not None or ids is not None:
            raise InputError(f"{loaded.name} sees images; leave the texts or ids out.")
        read, check = loaded.read(loaded.noise_images(samples, seed=seed))
        return read, replace(check, origin="noise images")
    if ids is None:
        return loaded.read(passages()[:samples] if texts is None else texts, length=length)
    if not ids or not all(ids):
        raise InputError("ids: give at least one row, and at least one id in each.")
    rows = [torch.tensor(row[:length]) for row in ids]
    padded = pad_sequence(rows, batch_first=True)
    real = torch.arange(padded.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]
    read, check = loaded.read(padded, token_mask=real)
    return read, replace(check, lost=tuple(max(len(row) - length, 0) for row in ids))


def _title(loaded: Loaded, state: str) -> str:
    spec, name = loaded.network.spec, loaded.name.removesuffix(" at initialisation")
    shape = f"{loaded.family.name}, {spec.layers} layers, {spec.heads} heads"
    return f"{name}, {state}: {shape}" if state else f"{name}: {shape}"


def _read_from(check: InputCheck, texts: Sequence[str] | None) -> str:
    if check.origin == "text":
        return "bundled passages" if texts is None else "given texts"
    return "given ids" if check.origin == "ids" else "images of noise"


def _unknown(check: InputCheck) -> dict[str, str]:
    if not check.unknown_count:
        return {}
    return {"unknown tokens": f"{check.unknown_count:,} of {check.counted:,}"}
