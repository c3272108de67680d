"""The two things a question can be about, before there are any weights: a design, or a model."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rankscope.ask import Subject, outline, random_subject
from rankscope.core.checks import usable_device
from rankscope.core.masks import as_mask
from rankscope.core.network import Spec
from rankscope.experiments.usual import Usual
from rankscope.run._setup import Setup
from rankscope.run._sources import BUNDLED, Texts


@dataclass(frozen=True)
class Design:
    """A random network and the texts it reads."""

    spec: Spec
    setup: Setup
    texts: Texts
    length: int

    def describe(self) -> dict[str, Any]:
        """What its numbers depend on; equal specs are one, however they were written."""
        return {"spec": self.spec.digest(seed=self.setup.seed), "length": self.length}

    def outline(self) -> Subject:
        """As much of the subject as an estimate needs."""
        tokens = self.texts.longest(self.length)
        return outline(self.spec, samples=len(self.texts.samples), tokens=tokens)

    def subject(self) -> Subject:
        """The network, drawn now, and what it reads."""
        setup = self.setup
        return random_subject(
            self.spec,
            self.texts.samples,
            length=self.length,
            seed=setup.seed,
            dtype=getattr(torch, setup.dtype),
            device=setup.device,
            special_tokens=setup.special_tokens,
            read_from=self.texts.origin,
        )


@dataclass(frozen=True)
class Model:
    """A model that is somewhere else, and the texts it reads; a vision model sees noise."""

    place: str
    contents: list[str]
    """What names the model and a tokeniser that it is given: other files are another run."""
    spec: Spec | None
    """Its structure, as far as that is known before it is loaded."""
    mask: str | None
    setup: Setup
    texts: Texts

    @property
    def length(self) -> int:
        """Tokens of a text at most; the model may have fewer positions."""
        return self.setup.length or Usual.length

    def describe(self) -> dict[str, Any]:
        """What its numbers depend on; a folder may be moved."""
        setup = self.setup
        said = {name: getattr(setup, name) for name in ("at_init", "pickled", "seed")}
        mask = None if self.mask is None else str(as_mask(self.mask, seed=setup.seed))
        called = Path(self.place).name
        named = {"model": called, "contents": self.contents, "mask": mask}
        return {**named, **said, "length": self.length}

    def outline(self) -> Subject | None:
        """As much of the subject as an estimate needs, where the structure is known."""
        if self.spec is None:
            return None
        return outline(self.spec, samples=len(self.texts.samples), tokens=self.length)

    def subject(self) -> Subject:
        """The model, loaded now, and what it reads."""
        from rankscope.ask import model_subject  # imports transformers

        setup, bundled = self.setup, self.texts.origin == BUNDLED
        found = model_subject(
            self.place,
            None if bundled else self.texts.samples,
            length=None if self.length == Usual.length else self.length,
            samples=len(self.texts.samples),
            special_tokens=setup.special_tokens,
            seed=setup.seed,
            read_from="" if bundled else self.texts.origin,
            init=setup.at_init,
            dtype=getattr(torch, setup.dtype),
            device=usable_device("device", setup.device),
            pickled=setup.pickled,
            tokenizer=setup.tokenizer,
        )
        if self.mask is None:
            return found
        mask = as_mask(self.mask, seed=setup.seed)
        return replace(found, network=found.network.with_mask(mask))
