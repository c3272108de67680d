"""Texts as ids and ids as words; a bundled tokeniser for models with random weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rankscope.models.text import InputCheck, Tokenizer

_ROLES = ("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id")
_SPACES = str.maketrans("ĠĊ", "▁↵")
"""How byte-level tokenisers write a space and a line's end, and how we do."""


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
        ids = [getattr(config, role, None) for role in _ROLES]
        special = [index for index in ids if isinstance(index, int) and 0 <= index < 100]
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
        known = dict(enumerate(self.inner.vocabulary, start=self.offset))
        return [known.get(index, str(index)) for index in ids]

    def __call__(
        self, texts: Sequence[str], *, max_length: int | None = None, **_options: object
    ) -> dict[str, Tensor]:
        rows = [torch.tensor(self.inner(text, length=max_length)) + self.offset for text in texts]
        ids = pad_sequence(rows, batch_first=True, padding_value=self.padding)
        lengths = torch.tensor([len(row) for row in rows])
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        return {"input_ids": ids, "attention_mask": mask.long()}


def encode(
    tokenizer: Any, texts: Sequence[str], length: int | None
) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Texts as ids, padded, and cut to ``length`` tokens if that is given.

    With them, which are real, and how many of each text were cut off.
    """
    cuts = {"truncation": length is not None, "max_length": length}
    encoded = tokenizer(list(texts), padding=True, return_tensors="pt", **cuts)
    token_mask = encoded["attention_mask"].bool()
    lost = []
    for text, kept in zip(texts, token_mask.sum(-1).tolist(), strict=True):
        whole = kept
        if length is not None and kept >= length:
            # Not verbose, because longer than the model is no news here.
            alone = tokenizer([text], truncation=False, max_length=None, verbose=False)
            whole = len(alone["input_ids"][0])
        lost.append(max(whole - kept, 0))
    return encoded["input_ids"], token_mask, tuple(lost)


def unknown_id(tokenizer: Any) -> int | None:
    """The id of what a tokeniser does not know.

    None where it knows everything: byte-level tokenisers name their end mark as unknown, too.
    """
    found = getattr(tokenizer, "unk_token_id", None)
    return None if found in [getattr(tokenizer, role, None) for role in _ROLES] else found


def special_tokens(tokenizer: Any, ids: Tensor) -> Tensor:
    """Which ids are special (CLS, BOS, SEP); an unknown token stands for a word and is not."""
    known = set(getattr(tokenizer, "all_special_ids", ())) - {unknown_id(tokenizer)}
    return torch.isin(ids, torch.tensor(sorted(known), device=ids.device, dtype=ids.dtype))


def input_check(
    arguments: Mapping[str, Any], token_mask: Tensor, tokenizer: Any, lost: tuple[int, ...] | None
) -> InputCheck:
    """What a model is given, in words; texts are known by how much of them was ``lost``."""
    ids = arguments.get("input_ids")
    if ids is None:  # tokens that have no words, by their places
        images = "pixel_values" in arguments
        counts = token_mask.sum(-1).tolist()
        first, other = ("class", "patch") if images else ("token 0", "token")
        tokens = tuple((first, *(f"{other} {place}" for place in range(1, n))) for n in counts)
        specials = ((0,),) * len(counts) if images else ()
        return InputCheck("images" if images else "embeddings", tokens, specials)
    never, rows = unknown_id(tokenizer), []
    convert = getattr(tokenizer, "convert_ids_to_tokens", None)  # without it, ids stand for words
    for row, real, marked in zip(
        ids.cpu(), token_mask.cpu(), special_tokens(tokenizer, ids).cpu(), strict=True
    ):
        seen = row[real].tolist()
        unknown = tuple(place for place, index in enumerate(seen) if index == never)
        marks = tuple(torch.nonzero(marked[real]).flatten().tolist())
        names = zip(seen, seen if convert is None else convert(seen), strict=True)
        words = (str(index if name is None else name) for index, name in names)
        rows.append((tuple(word.translate(_SPACES) for word in words), marks, unknown))
    tokens, specials, unknowns = zip(*rows, strict=True)
    return InputCheck("ids" if lost is None else "text", tokens, specials, unknowns, lost or ())
