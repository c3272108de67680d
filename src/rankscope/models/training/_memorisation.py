"""Memorisation: sentences whose every token has a random label (Dong et al. 2021, figure 4)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch.nn.utils.rnn import pad_sequence

from rankscope.arguments import Count, Range, checked
from rankscope.errors import InputError
from rankscope.models.text import Tokenizer
from rankscope.models.training._task import IGNORED, Examples
from rankscope.streams import stream

_ENDS = re.compile(r"(?<=[.!?])\s+")


@checked
@dataclass(frozen=True)
class Memorisation:
    """Sentences to be learnt by heart, each cut to ``tokens`` tokens, CLS and SEP among them.

    Tokens are the words of these very sentences.
    """

    sentences: tuple[str, ...]
    tokens: Annotated[int, Range(3, 1_000_000)] = 24
    labels: Count = 2

    def draw(self, seed: int) -> Examples:
        """All sentences, with labels of this seed; padding has none."""
        if not self.sentences:
            raise InputError("there is no sentence to memorise; give at least one.")
        tokenizer = Tokenizer.of(self.sentences)
        rows = [torch.tensor(tokenizer(text, length=self.tokens)) for text in self.sentences]
        ids = pad_sequence(rows, batch_first=True)
        drawn = torch.randint(self.labels, ids.shape, generator=stream(seed, "random labels"))
        return Examples(ids, torch.where(ids != 0, drawn, IGNORED), token_mask=ids != 0)


def split_sentences(texts: Sequence[str]) -> list[str]:
    """The sentences of some texts: what ends in a full stop, question or exclamation mark."""
    return [each.strip() for text in texts for each in _ENDS.split(text) if each.strip()]
