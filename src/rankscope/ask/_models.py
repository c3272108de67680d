"""A model by where it is: a name, a folder, one trained here, or an object at hand.

Claims and studies name models in their configuration, a comparison names those it compares; all of
them are a ``Model``, which is loaded when its turn comes.
"""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Protocol

from torch import nn

from rankscope import records
from rankscope.arguments import checked
from rankscope.ask._making import read_model, refuse_unfit
from rankscope.ask._subject import Subject
from rankscope.core.tracing import Provenance
from rankscope.errors import InputError
from rankscope.models.families import BUILTIN, Loaded, cached_folder, load
from rankscope.models.text import passages
from rankscope.models.training import small_language_model
from rankscope.process.fingerprints import fingerprint, folder_fingerprint
from rankscope.process.progress import OnStep, silent
from rankscope.results import Result

Source = str | Path | nn.Module | Loaded | Subject | Result
"""A folder or Hub id (with ``@init`` its architecture at initialisation), or what is at hand."""

INIT: Final = "@init"
_CHECKPOINT: Final = re.compile(r"checkpoint-(\d+)")


class Reads(Protocol):
    """A configuration that says what its models read; the seed is that of random weights."""

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
    """What it is called; the name of its source unless given."""
    pickled: bool = False
    trained_here: bool = False
    step: int | None = None
    training: str = ""

    @property
    def name(self) -> str:
        """What it is called in tables and charts, and where its weights are from."""
        weights = "trained here" if self.trained_here else "pretrained"
        label = self.label or Path(str(self.source)).name
        return f"{label} ({'init' if self.at_init else weights})"

    def describe(self) -> dict[str, Any]:
        """What a run depends on: other weights at the same place are another model."""
        source = self.source
        said = {each.name: getattr(self, each.name) for each in fields(self)[1:4]}
        if self.trained_here:
            return {**said, "trained_here": True}
        if isinstance(source, str | Path):
            folder = Path(source).expanduser()
            place = folder if folder.is_dir() else not self.at_init and cached_folder(str(source))
            contents = {"contents": folder_fingerprint(place)} if place else {}
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
        return load(self.source, init=self.at_init, seed=seed, pickled=self.pickled)

    def subject(self, reads: Reads, on_step: OnStep = silent, *, batch_size: int = 8) -> Subject:
        """The model, loaded or trained now, and what it reads; ``on_step`` is told when it is
        there."""
        if self.trained_here:
            return self._trained(reads, on_step, batch_size)
        loaded = self.load(seed=reads.seed)
        read, check = read_model(
            loaded, reads.texts, length=reads.length, samples=reads.samples, seed=reads.seed
        )
        refuse_unfit(loaded.name, check)
        on_step(1.0)
        about = {"family": loaded.family.name}
        network = loaded.network
        return Subject(network, read.x, read.token_mask, about=about, batch_size=batch_size)

    def _trained(self, reads: Reads, on_step: OnStep, batch_size: int) -> Subject:
        """It reads fewer tokens than it has features: LayerNorm takes one dimension from them, so
        that as many tokens could not all be independent."""
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
    """Built-in architectures with random weights."""
    unknown = [name for name in names if name not in BUILTIN]
    if unknown:
        raise InputError(f"{unknown[0]} is not built in; choose {', '.join(BUILTIN)}.")
    return tuple(Model(name, at_init=True) for name in names)


def by_name(models: Sequence[Model]) -> dict[str, Model]:
    """Models under their names; those that would be called alike are numbered.

    >>> list(by_name([Model("a/mini"), Model("b/mini")]))
    ['mini (pretrained)', 'mini (pretrained) 2']
    """
    if not models:
        raise InputError("there is no model to try; name at least one.")
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


@checked
def compared_models(models: Mapping[str, Source] | Sequence[Source]) -> tuple[Model, ...]:
    """Models to compare, each under a label of its own.

    >>> [model.label for model in compared_models(["models/mini", "models/mini@init"])]
    ['mini', 'mini at initialisation']

    A folder that holds checkpoints of a training (``checkpoint-100``, ``checkpoint-200``, …)
    stands for all of them, in the order of their steps, and for itself if it also holds a model; a
    file ``….parquet`` for the result in it. Keys of a mapping are labels.
    """
    named = models.items() if isinstance(models, Mapping) else [("", each) for each in models]
    listed = [model for label, source in named for model in _of(label, source)]
    if not listed:
        raise InputError("there is nothing to compare; name two or more models or results.")
    if len(listed) < 2:
        alone = listed[0].label
        raise InputError(f"{alone} alone cannot be compared; name another, or its {INIT}.")
    labelled: dict[str, Model] = {}
    for model in _told_apart(_in_order(listed)):
        label = free_name(model.label, labelled)
        labelled[label] = replace(model, label=label)
    return tuple(labelled.values())


def _of(label: str, source: Source) -> list[Model]:
    """What is meant by one source: several models where it is a folder of checkpoints."""
    if isinstance(source, Result):
        return [Model(source, label=label or source.title)]
    if not isinstance(source, str | Path):
        called = type(source).__name__ if isinstance(source, nn.Module) else source.name
        return [Model(source, label=label or called)]
    written = str(source)
    if written.endswith(".parquet"):
        return [Model(records.read(written), label=label or Path(written).stem)]
    if written.endswith(INIT):
        inner = written.removesuffix(INIT)
        called = label or f"{Path(inner).name} at initialisation"
        return [Model(inner, at_init=True, label=called)]
    folder = Path(written).expanduser()
    if not folder.is_dir():
        return [Model(written, label=label or folder.name)]
    inside = sorted(
        (int(match[1]), path)
        for path in folder.iterdir()
        if (match := _CHECKPOINT.fullmatch(path.name)) and path.is_dir()
    )
    if not inside:
        return [_checkpoint(label, folder)]
    steps = [_checkpoint("", path) for _, path in inside]
    last = Model(str(folder), label=f"{folder.name}, final", training=str(folder))
    return [*steps, *([last] if (folder / "config.json").is_file() else [])]


def _checkpoint(label: str, folder: Path) -> Model:
    match = _CHECKPOINT.fullmatch(folder.name)
    if match is None:
        return Model(str(folder), label=label or folder.name or folder.resolve().name)
    training = str(folder.resolve().parent)
    return Model(str(folder), label=label or folder.name, step=int(match[1]), training=training)


def _in_order(models: Sequence[Model]) -> list[Model]:
    """Checkpoints of one training by their steps, where they stand; a shell sorts by name."""
    ordered = list(models)
    for training in {model.training for model in models if model.step is not None}:
        places = [
            place
            for place, model in enumerate(models)
            if model.training == training and model.step is not None
        ]
        by_step = sorted((models[place] for place in places), key=lambda model: model.step or 0)
        for place, model in zip(places, by_step, strict=True):
            ordered[place] = model
    return ordered


def _told_apart(models: Sequence[Model]) -> list[Model]:
    """Checkpoints of several trainings with the names of their folders."""
    if len({model.training for model in models if model.step is not None}) < 2:
        return list(models)
    return [
        replace(model, label=f"{Path(model.training).name}/{model.label}")
        if model.step is not None and model.label == Path(str(model.source)).name
        else model
        for model in models
    ]
