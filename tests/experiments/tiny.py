"""Tiny models under the names experiments know them by; nothing is downloaded or drawn twice."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import transformers as hf
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rankscope.ask import Model
from rankscope.models.families import Loaded, load

from ..models.families.conftest import TINY, lively


class Words:
    """A tokeniser for small vocabularies: one id a word, the same for the same word."""

    all_special_ids = ()

    def __call__(self, texts: Sequence[str], *, max_length: int, **_: object) -> dict[str, Tensor]:
        rows = [
            torch.tensor([1 + sum(word.encode()) % 96 for word in text.split()][:max_length])
            for text in texts
        ]
        ids = pad_sequence(rows, batch_first=True)
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}


@dataclass(frozen=True)
class Tiny(Model):
    """A tiny model in float64 in which no weight is trivial."""

    at_init: bool = True

    def load(self, *, seed: int = 0) -> Loaded:
        del seed
        return replace(load(lively(self.source), dtype=torch.float64), tokenizer=Words())


@dataclass(frozen=True)
class Fresh(Model):
    """A tiny model in float64 as transformers initialises it."""

    at_init: bool = True

    def load(self, *, seed: int = 0) -> Loaded:
        hf.utils.logging.set_verbosity_error()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = TINY[self.source]().eval()
        return replace(load(model, dtype=torch.float64), tokenizer=Words())


@dataclass(frozen=True)
class Inward(Tiny):
    """A tiny model in which every token attends to itself alone: nothing is ever mixed."""

    def load(self, *, seed: int = 0) -> Loaded:
        loaded = super().load(seed=seed)
        return replace(loaded, network=loaded.network.with_mask("window:0"))
