"""The bundled tokeniser in the clothes of a transformers one, for models with random weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rankscope.models.text import Tokenizer


@dataclass(frozen=True)
class BundledTokenizer:
    """Ids of the bundled vocabulary, moved past a model's own special ids.

    At initialisation one id is as good as another, but the padding id has an embedding, and in
    some models a position, of its own.
    """

    inner: Tokenizer
    offset: int
    padding: int

    @classmethod
    def for_config(cls, config: Any) -> Self | None:
        """A tokeniser, if a model reads text and has enough embeddings for it."""
        names = ("pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id")
        found = [getattr(config, name, None) for name in names]
        special = [index for index in found if isinstance(index, int) and 0 <= index < 100]
        offset = max(special, default=-1) + 1
        inner = Tokenizer.bundled()
        if getattr(config, "vocab_size", 0) < offset + len(inner.vocabulary):
            return None
        return cls(inner, offset, getattr(config, "pad_token_id", None) or 0)

    @property
    def all_special_ids(self) -> tuple[int, int]:
        """CLS and SEP."""
        return self.offset + 1, self.offset + 2

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Tokens as text; an id that stands for none of them as its number."""
        known = self.inner.vocabulary
        places = [index - self.offset for index in ids]
        return [
            known[place] if 0 <= place < len(known) else str(index)
            for index, place in zip(ids, places, strict=True)
        ]

    def __call__(
        self, texts: Sequence[str], *, max_length: int | None = None, **_options: object
    ) -> dict[str, Tensor]:
        rows = [torch.tensor(self.inner(text, length=max_length)) + self.offset for text in texts]
        ids = pad_sequence(rows, batch_first=True, padding_value=self.padding)
        lengths = torch.tensor([len(row) for row in rows])
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        return {"input_ids": ids, "attention_mask": mask.long()}
