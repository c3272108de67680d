"""Models and their inputs; a model is described by its source and loaded when it is needed.

Transformers is imported here, which takes seconds, so that nothing else in this package does.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from rankscope.arguments import checked
from rankscope.ask._subject import Origin, Subject, refuse_unfit
from rankscope.ask._traced import GivenInputs, NoNetwork, SampledInputs, Traced, drawn_anew
from rankscope.ask._words import LENGTH
from rankscope.core.checks import whole
from rankscope.core.tracing import Provenance, Sublayers
from rankscope.errors import InputError, RankscopeError, UnsupportedModelError
from rankscope.models.checkpoints import model_fingerprint, resolve_checkpoint
from rankscope.models.families import (
    BUILTIN,
    BlockInput,
    Loaded,
    Unconverted,
    cached_folder,
    load,
    load_any,
)
from rankscope.models.text import InputCheck, passages
from rankscope.models.training import small_language_model
from rankscope.numerals import plural
from rankscope.process import OnStep, fingerprint, silent
from rankscope.results import Result

Source = str | Path | nn.Module | Loaded | Subject | Result
"""A folder, a Hub id, or an object."""

_READ_FROM: Final = {"ids": "given ids", "noise images": "images of noise"}


@checked
def model_subject(
    source: str | Path | nn.Module | Loaded | Unconverted,
    texts: Sequence[str] | None = None,
    *,
    ids: Sequence[Sequence[int]] | None = None,
    images: Tensor | None = None,
    length: int | None = None,
    samples: int = 32,
    special_tokens: bool = True,
    seed: int = 0,
    batch_size: int = 8,
    read_from: str = "",
    pretrained: bool = False,
    any_model: bool = False,
    tracing: Mapping[str, Any] | None = None,
    **loading: Any,
) -> Subject:
    """A verified model and its input, checked token by token (``Subject.check``).

    >>> subject = model_subject("bert-base", at_init=True, samples=1, length=8)
    >>> subject.check.tokens[0][:3]
    ('[CLS]', 'mary', 'anning')

    ``source`` is whatever ``rankscope.load`` takes, or what it returns; ``loading`` are its
    options. Without ``texts`` or token ``ids`` the first ``samples`` bundled passages are read; a
    model of images or sounds is given ``images``, or as many of noise. Texts and ids are cut to
    ``length`` tokens: 128, or as many as the model has positions, unless given. With
    ``any_model``, a model that cannot be converted becomes a subject that is traced
    (``Subject.traced``) with the options ``tracing`` of ``trace``; otherwise it is refused.
    ``special_tokens=False`` leaves CLS and the like out of the figures; the model still sees them.
    A text that does not fit the model is read all the same: ``check.fits`` says so. ``read_from``
    names the source of the texts or ids in the provenance; ``pretrained`` says of a loaded model
    what is known of one that is named.
    """
    if length is not None:
        whole("length", length, least=1)
    whole("samples", samples, least=1)
    options = [name for name, value in loading.items() if value not in (None, False)]
    if isinstance(source, Loaded | Unconverted) and options:
        raise InputError(f"{options[0]} applies to loading; {source.name} is loaded already.")
    if isinstance(source, Loaded | Unconverted):
        loaded = source
    else:
        loaded = (load_any if any_model else load)(source, seed=seed, **loading)
    if not special_tokens and ids is not None and loaded.tokenizer is None:
        raise InputError(
            "without a tokeniser it is not known which ids are special, so they cannot be left "
            "out (special_tokens=False, --no-special-tokens); give one (tokenizer, --tokenizer)."
        )
    reading = partial(
        _source, texts=texts, ids=ids, images=images, length=length, samples=samples, seed=seed
    )
    named = isinstance(source, str | Path)
    drawn = bool(loading.get("at_init"))
    if isinstance(loaded, Loaded):
        drawn = loaded.network.seed is not None
    origin = "random" if drawn else "pretrained" if named or pretrained else ""
    if isinstance(loaded, Unconverted):
        subject = _traced_subject(loaded, reading, tracing, special_tokens=special_tokens)
        assert subject.traced is not None
        shape = f"{loaded.family.name}, {len(subject.traced.stack)} layers, not converted"
    else:
        read, check = _read(loaded, reading)
        spec = loaded.network.spec
        shape = f"{loaded.family.name}, {spec.layers} layers, {spec.heads} heads"
        subject = Subject(
            loaded.network,
            read.x,
            read.token_mask,
            None if special_tokens else read.token_mask & ~read.special_mask,
            check=check,
            twin=lambda seed: loaded.reinitialised(seed=seed).network,
            origin=_origin(loaded, reading),
        )
    assert subject.check is not None
    bundled = "bundled passages" if texts is None else "given texts"
    about = {"origin": origin} if origin else {}
    about["input"] = subject.check.summary(
        read_from or _READ_FROM.get(subject.check.origin, bundled)
    )
    about["special tokens"] = "counted" if special_tokens else "left out of the figures"
    if subject.check.unknown_count:
        about["unknown tokens"] = f"{subject.check.unknown_count:,} of {subject.check.counted:,}"
    state = ", at initialisation" if drawn else f", {origin}" if origin else ""
    name = loaded.name.removesuffix(" at initialisation")
    title = f"{name}{state}: {shape}"
    return replace(subject, title=title, about=about, batch_size=batch_size)


def _traced_subject(
    loaded: Unconverted,
    reading: "Reading",
    tracing: Mapping[str, Any] | None,
    *,
    special_tokens: bool = True,
    sublayers: Sublayers | None = None,
) -> Subject:
    """A model that is not converted, on what it reads."""
    source, options, change = reading(loaded)
    read = loaded.read(source, **options)
    name = "attention_mask" if "attention_mask" in read.arguments else ""
    samples = len(next(iter(read.arguments.values())))
    inputs = SampledInputs(read.arguments, samples, read.token_mask, name)
    traced, x, mask = Traced.prepared(loaded.body, inputs, options=tracing, sublayers=sublayers)
    real = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    special, check = loaded.describe(read, real.to(x.device))
    counted = None if special_tokens else real & ~special

    def fresh(seed: int) -> Subject:
        drawn = loaded.reinitialised(seed=seed)
        return _traced_subject(drawn, reading, tracing, sublayers=traced.sublayers)

    folder = Path(loaded.name).expanduser()
    return Subject(
        NoNetwork(loaded.name, loaded.reason),
        x,
        mask,
        counted,
        check=replace(check, **change),
        traced=traced,
        origin=Origin(
            model=loaded.original,
            fresh=fresh,
            read=lambda: x,
            save=loaded.save,
            folder=folder if folder.is_dir() else None,
        ),
    )


@checked
def module_subject(
    model: nn.Module,
    inputs: Any,
    *,
    token_mask: Tensor | None = None,
    measured: Tensor | None = None,
    tracing: Mapping[str, Any] | None = None,
    batch_size: int = 8,
    reason: RankscopeError | None = None,
) -> Subject:
    """Any module on inputs as ``trace`` takes them, of which the hidden states are read by hooks.

    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> subject = module_subject(nn.TransformerEncoder(layer, 2), torch.randn(3, 5, 8))
    >>> subject.name, subject.x.shape
    ('TransformerEncoder: 2 layers, not converted', torch.Size([3, 5, 8]))
    """
    reason = reason or UnsupportedModelError(
        f"{type(model).__name__} is not a model of transformers, so it is not converted; "
        "`rankscope.load(model, probe=...)` tries to."
    )
    given = GivenInputs(inputs, token_mask)
    return _module_subject(model, given, measured, tracing or {}, batch_size, reason)


def _module_subject(
    model: nn.Module,
    inputs: GivenInputs,
    measured: Tensor | None,
    tracing: Mapping[str, Any],
    batch_size: int,
    reason: RankscopeError,
    sublayers: Sublayers | None = None,
) -> Subject:
    traced, x, mask = Traced.prepared(model, inputs, options=tracing, sublayers=sublayers)

    def fresh(seed: int) -> Subject:
        drawn = drawn_anew(model, seed)
        return _module_subject(
            drawn, inputs, measured, tracing, batch_size, reason, traced.sublayers
        )

    return Subject(
        NoNetwork(type(model).__name__, reason),
        x,
        mask,
        measured,
        title=f"{type(model).__name__}: {plural(len(traced.stack), 'layer')}, not converted",
        batch_size=batch_size,
        traced=traced,
        origin=Origin(model=model, fresh=fresh, read=lambda: x, save=None),
    )


def _origin(loaded: Loaded, reading: "Reading") -> Origin:
    """The ``Origin`` of a subject made from a loaded model."""

    def fresh(seed: int) -> Subject:
        drawn = loaded.reinitialised(seed=seed)
        read, _ = _read(drawn, reading)
        origin = _origin(drawn, reading)
        return Subject(drawn.network, read.x, read.token_mask, origin=origin)

    folder = Path(loaded.name).expanduser()
    return Origin(
        model=loaded.original,
        fresh=fresh,
        read=lambda: _read(loaded, reading)[0].x,
        save=loaded.save,
        pooling=lambda: loaded.pooling,
        folder=folder if folder.is_dir() else None,
    )


def read_model(
    loaded: Loaded,
    texts: Sequence[str] | None = None,
    ids: Sequence[Sequence[int]] | None = None,
    *,
    length: int | None = None,
    samples: int = 1,
    seed: int = 0,
) -> tuple[BlockInput, InputCheck]:
    """The input of a model's blocks, and the tokens that were read.

    Without ``texts`` or ``ids`` these are the first ``samples`` bundled passages, or as many images
    of noise for a vision model, which takes nothing else.
    """
    return _read(
        loaded, partial(_source, texts=texts, ids=ids, length=length, samples=samples, seed=seed)
    )


Reading = Callable[[Loaded | Unconverted], tuple[Any, dict[str, Any], dict[str, Any]]]
"""What a model reads: a source, options of ``read``, and what its check says differently."""


def _read(loaded: Loaded, reading: Reading) -> tuple[BlockInput, InputCheck]:
    source, options, change = reading(loaded)
    read, check = loaded.read(source, **options)
    return read, replace(check, **change)


def _source(
    loaded: Loaded | Unconverted,
    *,
    texts: Sequence[str] | None = None,
    ids: Sequence[Sequence[int]] | None = None,
    images: Tensor | None = None,
    length: int | None = None,
    samples: int = 1,
    seed: int = 0,
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Texts, ids, or images as given; else bundled passages, or noise."""
    if texts is not None and ids is not None:
        raise InputError("texts and ids are two inputs; give one of them.")
    if loaded.media:
        if texts is not None or ids is not None:
            what = "sees images" if loaded.sees_images else f"takes {loaded.media}"
            raise InputError(f"{loaded.name} {what}; leave the texts or ids out.")
        if images is not None:
            return images, {}, {}
        noise = loaded.noise_images(samples, seed=seed)
        return noise, {}, {"origin": "noise images"} if loaded.sees_images else {}
    if images is not None:
        raise InputError(f"{loaded.name} reads text; give it texts or token ids.")
    if length is None:
        length = min(LENGTH, loaded.family.most_tokens(loaded.body) or LENGTH)
    if ids is None:
        return passages()[:samples] if texts is None else texts, {"length": length}, {}
    if not ids or not all(ids):
        raise InputError("ids: give at least one row, and at least one id in each.")
    rows = [torch.tensor(row[:length]) for row in ids]
    padded = pad_sequence(rows, batch_first=True)
    real = torch.arange(padded.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]
    lost = tuple(max(len(row) - length, 0) for row in ids)
    return padded, {"token_mask": real}, {"lost": lost}


class Reads(Protocol):
    """A configuration with the input of its models; the seed is that of random weights."""

    @property
    def texts(self) -> tuple[str, ...] | None: ...
    @property
    def length(self) -> int: ...
    @property
    def samples(self) -> int: ...
    @property
    def seed(self) -> int: ...


@checked
@dataclass(frozen=True)
class Model:
    """A model by its source, with its own weights or ``at_init`` with random ones.

    >>> Model("bert-base", at_init=True).name, Model("models/mini", label="Mini").name
    ('bert-base (init)', 'Mini (pretrained)')

    ``trained_here`` is a small language model, trained on the bundled passages when its turn comes
    (a minute): it stands in for a pretrained one where none is at hand. ``step`` is that of a
    checkpoint, and ``training`` the folder it is in.
    """

    source: Source
    at_init: bool = False
    label: str = ""
    """Its title; by default the name of its source."""
    pickled: bool = False
    trained_here: bool = False
    step: int | None = None
    training: str = ""

    @property
    def name(self) -> str:
        """Its name in tables and charts, with the origin of its weights."""
        weights = "trained here" if self.trained_here else "pretrained"
        label = self.label or Path(str(self.source)).name
        return f"{label} ({'init' if self.at_init else weights})"

    def describe(self) -> dict[str, Any]:
        """What a run depends on; changed weights at the same location are another model."""
        source = self.source
        said = {slot.name: getattr(self, slot.name) for slot in fields(self)[1:4]}
        if self.trained_here:
            return {**said, "trained_here": True}
        if isinstance(source, str | Path):
            path = Path(resolve_checkpoint(str(source))).expanduser()
            there = path.is_dir() or path.is_file()
            location = path if there else not self.at_init and cached_folder(str(source))
            contents = {"contents": model_fingerprint(location)} if location else {}
            return {"source": str(source), **said, **contents}
        if isinstance(source, Result):
            return {**said, "result": fingerprint([source.id, dict(source.provenance)])}
        if isinstance(source, Subject):
            return {**said, "subject": source.digest()}
        model = source.network if isinstance(source, Loaded) else source
        return {**said, "weights": Provenance.of(model).weights}

    def twin(self) -> "Model":
        """The same architecture with random weights."""
        return replace(self, at_init=True)

    def load(self, *, seed: int = 0) -> Loaded:
        """The model, verified; ``seed`` is that of random weights."""
        assert isinstance(self.source, str | Path | nn.Module)
        return load(self.source, at_init=self.at_init, seed=seed, pickled=self.pickled)

    def subject(self, reads: Reads, on_step: OnStep = silent, *, batch_size: int = 8) -> Subject:
        """The model, loaded or trained now, and its input; ``on_step`` is called when it is
        loaded."""
        if self.trained_here:
            return self._trained(reads, on_step, batch_size)
        loaded = self.load(seed=reads.seed)
        read, check = read_model(
            loaded, reads.texts, length=reads.length, samples=reads.samples, seed=reads.seed
        )
        refuse_unfit(loaded.name, check)
        on_step(1.0)
        about = {"family": loaded.family.name}
        return Subject(loaded.network, read.x, read.token_mask, about=about, batch_size=batch_size)

    def _trained(self, reads: Reads, on_step: OnStep, batch_size: int) -> Subject:
        """The number of tokens is less than the width: LayerNorm removes one dimension, so that as
        many tokens as features could not be independent."""
        small = small_language_model(reads.seed, on_step=on_step)
        if small.accuracy < 2 * small.chance:
            raise InputError(
                f"the small model trained here fills in {small.accuracy:.2f} of the masked tokens, "
                f"hardly more than a guess ({small.chance:.2f}); pass a trained one (--pretrained)."
            )
        texts = passages()[: reads.samples] if reads.texts is None else reads.texts
        length = min(reads.length, 3 * small.network.spec.width // 4)
        read = (small.twin() if self.at_init else small).read(texts, length=length)
        skill = f"fills in {small.accuracy:.0%} of masked tokens, a guess {small.chance:.0%}"
        about = {"family": "trained here", **({} if self.at_init else {"skill": skill})}
        return Subject(*read, about=about, batch_size=batch_size)


SMALL: Final = Model("small", trained_here=True)
"""The small language model that is trained here."""


def built_in(*names: str) -> tuple[Model, ...]:
    """Built-in architectures with random weights.

    >>> from rankscope.ask import built_in
    >>> [model.name for model in built_in("bert-base", "gpt2")]
    ['bert-base (init)', 'gpt2 (init)']
    """
    unknown = [name for name in names if name not in BUILTIN]
    if unknown:
        raise InputError(f"{unknown[0]} is not built in; choose {', '.join(BUILTIN)}.")
    return tuple(Model(name, at_init=True) for name in names)


def by_name(models: Sequence[Model]) -> dict[str, Model]:
    """Models by name; equal names are numbered.

    >>> list(by_name([Model("a/mini"), Model("b/mini")]))
    ['mini (pretrained)', 'mini (pretrained) 2']
    """
    if not models:
        raise InputError("no models are given; name at least one.")
    named: dict[str, Model] = {}
    for model in models:
        named[free_name(model.name, named)] = model
    return named


def free_name(name: str, taken: Container[str]) -> str:
    """A name, numbered if it is taken.

    >>> free_name("mini", ["mini", "mini 2"])
    'mini 3'
    """
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name} {number}"
    return free
