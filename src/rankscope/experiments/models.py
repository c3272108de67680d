"""Models an experiment looks at, named in its configuration and loaded when their turn comes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from rankscope.errors import InputError
from rankscope.experiments.config import Config
from rankscope.experiments.subject import Subject
from rankscope.families import BUILTIN, Loaded, load
from rankscope.text import passages


@dataclass(frozen=True)
class Case:
    """A model by its source: a built-in name with random weights, or a folder or Hub id.

    >>> Case("bert-base").name, Case("models/mini", trained=True, label="Mini").name
    ('bert-base (init)', 'Mini (pretrained)')
    """

    source: str
    trained: bool = False
    label: str = ""
    pickled: bool = False

    @property
    def name(self) -> str:
        """What it is called in tables and charts."""
        named = self.label or Path(self.source).name
        return f"{named} ({'pretrained' if self.trained else 'init'})"

    def load(self, *, seed: int = 0) -> Loaded:
        """The model, verified; ``seed`` is that of random weights."""
        return load(self.source, init=not self.trained, seed=seed, pickled=self.pickled)


def at_initialisation(*names: str) -> tuple[Case, ...]:
    """Built-in architectures with random weights."""
    unknown = [name for name in names if name not in BUILTIN]
    if unknown:
        raise InputError(f"{unknown[0]} is not built in; choose {', '.join(BUILTIN)}.")
    return tuple(Case(name) for name in names)


def by_name(cases: Sequence[Case]) -> dict[str, Case]:
    """Cases under their names; those that would be called alike are numbered.

    >>> list(by_name([Case("a/mini", trained=True), Case("b/mini", trained=True)]))
    ['mini (pretrained)', 'mini (pretrained) 2']
    """
    if not cases:
        raise InputError("there is no model to try; name at least one.")
    named: dict[str, Case] = {}
    for case in cases:
        name, number = case.name, 1
        while name in named:
            number += 1
            name = f"{case.name} {number}"
        named[name] = case
    return named


def inputs(
    loaded: Loaded,
    texts: Sequence[str] | None,
    length: int,
    *,
    samples: int = 1,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """What a model reads, and its token mask.

    Without ``texts`` these are the first ``samples`` bundled passages, or as many images of noise
    for a vision model, which takes no texts.
    """
    if loaded.sees_images:
        if texts is not None:
            raise InputError(f"{loaded.name} takes images, not texts; leave the texts out.")
        read = loaded.inputs(loaded.noise_images(samples, seed=seed))
    else:
        read = loaded.inputs(passages()[:samples] if texts is None else texts, length=length)
    return read.x, read.token_mask


@dataclass(frozen=True)
class ModelsConfig(Config):
    """Models, and what each of them reads; the seed is that of random weights."""

    models: tuple[Case, ...] = at_initialisation("bert-base", "albert-base-v2", "xlnet-base")
    texts: tuple[str, ...] | None = None
    """What the models read; the first bundled passages unless given."""
    samples: int = 1
    """How many bundled passages."""
    length: int = 128
    """Tokens of a text at most."""

    def subject(self, case: Case, *, batch_size: int = 8) -> Subject:
        """A model, loaded now, and its input."""
        loaded = case.load(seed=self.seed)
        x, token_mask = inputs(
            loaded, self.texts, self.length, samples=self.samples, seed=self.seed
        )
        return Subject(loaded.network, x, token_mask, batch_size=batch_size)
