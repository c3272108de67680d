"""Cases whose model is made on the spot and reads numbers for words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from rankscope.experiments import Case
from rankscope.families import Loaded, load

from ..families.conftest import lively

TEXTS = ("5 17 42 8 66 23", "1 2 3 4 5 6")


class Numbers:
    """A tokeniser of texts of numbers, all of which must have as many."""

    all_special_ids = ()

    def __call__(self, texts: Sequence[str], *, max_length: int, **_: object) -> dict[str, Tensor]:
        ids = torch.tensor([[int(word) for word in text.split()][:max_length] for text in texts])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@dataclass(frozen=True)
class Made(Case):
    """A model in float64 from a function; a lively one of its source's family unless given."""

    make: Callable[[], nn.Module] | None = field(default=None, repr=False)

    def load(self, *, seed: int = 0) -> Loaded:
        del seed
        model = lively(self.source) if self.make is None else self.make()
        return replace(load(model, dtype=torch.float64), tokenizer=Numbers())
