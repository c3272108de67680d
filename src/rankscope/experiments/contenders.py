"""What is compared: models by name or at hand, checkpoints of a training, earlier results."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from torch import nn

from rankscope import records
from rankscope.arguments import checked
from rankscope.core.tracing import Provenance
from rankscope.errors import InputError
from rankscope.experiments.models import Case, free_name
from rankscope.experiments.subject import Subject
from rankscope.models.families import Loaded
from rankscope.process.fingerprints import fingerprint
from rankscope.results import Result

Source = str | Path | nn.Module | Loaded | Subject | Result
"""A folder or Hub id (with ``@init`` its architecture at initialisation), or what is at hand."""

INIT: Final = "@init"
_CHECKPOINT: Final = re.compile(r"checkpoint-(\d+)")


@checked
@dataclass(frozen=True, eq=False)
class Contender:
    """One of those that are compared: its name, where it is, and how far it was trained.

    ``init`` asks for random weights instead of its own. ``step`` is that of a checkpoint, and
    ``training`` the folder it is in.
    """

    name: str
    source: Source
    init: bool = False
    step: int | None = None
    training: str = ""

    def describe(self) -> dict[str, Any]:
        """What a comparison depends on: other weights at the same place are another contender."""
        source = self.source
        if isinstance(source, str | Path):
            return Case(str(source), trained=not self.init, label=self.name).describe()
        if isinstance(source, Result):
            return {"name": self.name, "result": fingerprint([source.id, dict(source.provenance)])}
        if isinstance(source, Subject):
            return {"name": self.name, "subject": source.digest()}
        model = source.network if isinstance(source, Loaded) else source
        return {"name": self.name, "weights": Provenance.of(model).weights, "init": self.init}


@checked
def contenders(models: Mapping[str, Source] | Sequence[Source]) -> tuple[Contender, ...]:
    """Contenders from what was named, each under a name of its own.

    >>> [each.name for each in contenders(["models/mini", "models/mini@init"])]
    ['mini', 'mini at initialisation']

    A folder that holds checkpoints of a training (``checkpoint-100``, ``checkpoint-200``, …)
    stands for all of them, in the order of their steps, and for itself if it also holds a model; a
    file ``….parquet`` for the result in it. Keys of a mapping are names.
    """
    named = models.items() if isinstance(models, Mapping) else [("", each) for each in models]
    found = [each for name, source in named for each in _of(name, source)]
    if not found:
        raise InputError("there is nothing to compare; name two or more models or results.")
    if len(found) < 2:
        raise InputError(f"{found[0].name} alone cannot be compared; name another, or its {INIT}.")
    return tuple(_numbered(_apart(_in_order(found))))


def _of(name: str, source: Source) -> list[Contender]:
    if not isinstance(source, str | Path):
        return [Contender(name or _called(source), source)]
    written = str(source)
    if written.endswith(".parquet"):
        return [Contender(name or Path(written).stem, records.read(written))]
    if written.endswith(INIT):
        inner = written.removesuffix(INIT)
        called = name or f"{Path(inner).name} at initialisation"
        return [Contender(called, inner, init=True)]
    folder = Path(written).expanduser()
    inside = sorted(
        (int(match[1]), each)
        for each in (folder.iterdir() if folder.is_dir() else ())
        if (match := _CHECKPOINT.fullmatch(each.name)) and each.is_dir()
    )
    if not inside:
        return [
            _checkpoint(name, folder)
            if folder.is_dir()
            else Contender(name or folder.name, written)
        ]
    steps = [_checkpoint("", each) for _, each in inside]
    last = Contender(f"{folder.name}, final", str(folder), training=str(folder))
    return [*steps, *([last] if (folder / "config.json").is_file() else [])]


def _checkpoint(name: str, folder: Path) -> Contender:
    match = _CHECKPOINT.fullmatch(folder.name)
    if match is None:
        return Contender(name or folder.name or folder.resolve().name, str(folder))
    training = str(folder.resolve().parent)
    return Contender(name or folder.name, str(folder), step=int(match[1]), training=training)


def _called(source: nn.Module | Loaded | Subject | Result) -> str:
    if isinstance(source, Result):
        return source.title
    return type(source).__name__ if isinstance(source, nn.Module) else source.name


def _in_order(found: Sequence[Contender]) -> list[Contender]:
    """Checkpoints of one training by their steps, where they stand; a shell sorts by name."""
    ordered = list(found)
    for training in {each.training for each in found if each.step is not None}:
        places = [
            place
            for place, each in enumerate(found)
            if each.training == training and each.step is not None
        ]
        by_step = sorted((found[place] for place in places), key=lambda each: each.step or 0)
        for place, each in zip(places, by_step, strict=True):
            ordered[place] = each
    return ordered


def _apart(found: Iterable[Contender]) -> list[Contender]:
    """Checkpoints of several trainings with the names of their folders."""
    given = list(found)
    if len({each.training for each in given if each.step is not None}) < 2:
        return given
    return [
        replace(each, name=f"{Path(each.training).name}/{each.name}")
        if each.step is not None and each.name == Path(str(each.source)).name
        else each
        for each in given
    ]


def _numbered(found: Iterable[Contender]) -> list[Contender]:
    """Those that would be called alike, numbered."""
    named: dict[str, Contender] = {}
    for each in found:
        name = free_name(each.name, named)
        named[name] = replace(each, name=name)
    return list(named.values())
