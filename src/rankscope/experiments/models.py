"""Models an experiment looks at, named in its configuration and loaded when their turn comes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from rankscope.errors import InputError
from rankscope.families import BUILTIN, Loaded, load


@dataclass(frozen=True)
class Case:
    """A model by its source: a built-in name with random weights, or a folder or Hub id."""

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


def inputs(loaded: Loaded, texts: Sequence[str], length: int) -> tuple[Tensor, Tensor]:
    """What a model reads, and its token mask; noise images, as many, for one that sees."""
    if loaded.sees_images:
        x, token_mask, _ = loaded.inputs(loaded.noise_images(len(texts)))
    else:
        x, token_mask, _ = loaded.inputs(texts, length=length)
    return x, token_mask
