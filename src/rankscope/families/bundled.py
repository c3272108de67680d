"""The bundled tokeniser in the clothes of a transformers one, for models with random weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rankscope.text import Tokenizer


@dataclass(frozen=True)
class BundledTokenizer:
    """Ids of the bundled vocabulary; at initialisation one id is as good as another."""

    inner: Tokenizer
    all_special_ids: tuple[int, ...] = (1, 2)

    @classmethod
    def for_vocabulary(cls, size: int) -> Self | None:
        """A tokeniser, if a model has enough embeddings for it."""
        inner = Tokenizer.bundled()
        return cls(inner) if size >= len(inner.vocabulary) else None

    def __call__(
        self, texts: Sequence[str], *, max_length: int | None = None, **_options: object
    ) -> dict[str, Tensor]:
        rows = [torch.tensor(self.inner(text, length=max_length)) for text in texts]
        ids = pad_sequence(rows, batch_first=True, padding_value=0)
        lengths = torch.tensor([len(row) for row in rows])
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        return {"input_ids": ids, "attention_mask": mask.long()}
