"""Between texts and token ids: encoding, what was cut off, and the tokens in words again."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankscope.models.text import InputCheck

_ROLES = ("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id")
_SPACES = str.maketrans("ĠĊ", "▁↵")
"""How byte-level tokenisers write a space and a line's end, and how we do."""


class Encoded(NamedTuple):
    """Token ids, which of them are real, and how many of each text were cut off."""

    ids: Tensor
    token_mask: Tensor
    lost: tuple[int, ...]


def encode(tokenizer: Any, texts: Sequence[str], length: int | None) -> Encoded:
    """Texts as ids, padded, and cut to ``length`` tokens if that is given."""
    encoded = tokenizer(
        list(texts),
        padding=True,
        truncation=length is not None,
        max_length=length,
        return_tensors="pt",
    )
    token_mask = encoded["attention_mask"].bool()
    kept = [int(count) for count in token_mask.sum(-1)]
    if length is None:
        return Encoded(encoded["input_ids"], token_mask, (0,) * len(kept))
    whole = [
        _count(tokenizer, text) if count >= length else count
        for text, count in zip(texts, kept, strict=True)
    ]
    lost = tuple(max(all_ - count, 0) for all_, count in zip(whole, kept, strict=True))
    return Encoded(encoded["input_ids"], token_mask, lost)


def _count(tokenizer: Any, text: str) -> int:
    """Tokens of a whole text; ``verbose`` is off because longer than the model is no news here."""
    whole = tokenizer([text], truncation=False, max_length=None, verbose=False)
    return len(whole["input_ids"][0])


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
    if ids is None:
        return _unnamed(token_mask, images="pixel_values" in arguments)
    never, rows = unknown_id(tokenizer), []
    for row, real, marked in zip(
        ids.cpu(), token_mask.cpu(), special_tokens(tokenizer, ids).cpu(), strict=True
    ):
        seen = row[real].tolist()
        unknown = tuple(place for place, index in enumerate(seen) if index == never)
        marks = tuple(torch.nonzero(marked[real]).flatten().tolist())
        rows.append((_names(tokenizer, seen), marks, unknown))
    tokens, specials, unknowns = zip(*rows, strict=True)
    return InputCheck("ids" if lost is None else "text", tokens, specials, unknowns, lost or ())


def _unnamed(token_mask: Tensor, *, images: bool) -> InputCheck:
    """Tokens that have no words, by their places."""
    counts = [int(count) for count in token_mask.sum(-1)]
    first, other = ("class", "patch") if images else ("token 0", "token")
    tokens = tuple((first, *(f"{other} {place}" for place in range(1, n))) for n in counts)
    specials = ((0,),) * len(counts) if images else ()
    return InputCheck("images" if images else "embeddings", tokens, specials)


def _names(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """Tokens as text; their ids where there is no tokeniser that could tell."""
    convert = getattr(tokenizer, "convert_ids_to_tokens", None)
    if convert is None:
        return tuple(map(str, ids))
    found = [
        str(index) if each is None else str(each)
        for index, each in zip(ids, convert(list(ids)), strict=True)
    ]
    return tuple(each.translate(_SPACES) for each in found)
