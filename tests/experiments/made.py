"""Cases whose model is made on the spot."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from rankscope.ask import Model
from rankscope.models.families import Loaded, load

from .tiny import Words

TEXTS = ("five seventeen two eight sixty three", "one two three four five six")


@dataclass(frozen=True)
class Made(Model):
    """A model in float64 from a function, with a tokeniser of words."""

    at_init: bool = True

    make: Callable[[], nn.Module] | None = field(default=None, repr=False)

    def load(self, *, seed: int = 0) -> Loaded:
        del seed
        assert self.make is not None
        return replace(load(self.make(), dtype=torch.float64), tokenizer=Words())
