"""Which tokens are padding, inferred from the masks of a model, and which are measured."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankscope.core.checks import mask_like, measured_tokens, valid_mask
from rankscope.core.tracing._inputs import PADS_ON_THE_RIGHT, UNNAMED, BlockLocation, Ids, ids_among
from rankscope.errors import InputError, ShapeError

_SAY = "specify the tokens: trace(..., token_mask=...), True for a token, False for padding."
_FAR_BELOW = -1e3
"""Added to logits, this or less hides a token completely."""
_EITHER_WAY = ("padding_mask", "pad_mask", "input_mask", "encoder_padding_mask")
"""Names of masks that mark the padding in some models and the tokens in others."""
_OF_SOMETHING_ELSE = (
    "global", "head", "masked_pos", "special", "loss", "label", "decoder", "ids", "type",
    "position", "target",
)  # fmt: skip
"""Parts of names of arguments of zeros and ones that do not mark padding."""


class MaskReading(NamedTuple):
    """The tokens that are not padding (None: all), and how the mask was interpreted."""

    mask: Tensor | None
    words: str
    key_mask: Tensor | None = None
    """With a cache, the mask of all keys: those in the cache first, then the tokens above."""


def choose_mask(
    token_mask: Tensor | None, inputs: Mapping[str, Any], location: BlockLocation
) -> MaskReading:
    """Which tokens are real: as specified, or inferred for the blocks at this location."""
    if token_mask is not None:
        return MaskReading(token_mask, "token_mask, as specified")
    mask = read_mask(inputs, decoder=location.is_decoder, model_type=location.model_type)
    if location.sees_other_input(inputs):
        return MaskReading(None, "none: the mask applies to the text, not to these blocks' input")
    return mask


def read_mask(inputs: Mapping[str, Any], *, decoder: bool, model_type: str | None) -> MaskReading:
    """The mask among a model's inputs that applies to the tokens of these blocks."""
    token_mask = inputs.get("token_mask")
    if isinstance(token_mask, Tensor) and token_mask.dtype == torch.bool:
        return MaskReading(token_mask, "token_mask among the inputs: True is a token")
    name = "decoder_attention_mask" if decoder else "attention_mask"
    _refuse_several(name, inputs)
    attention = inputs.get(name)
    if isinstance(attention, Tensor):
        if attention.ndim > 2:
            return _of_pairs(name, attention)
        ids = ids_among(inputs, decoder=decoder)
        if attention.ndim == 2 and model_type is None and _may_be_of_pairs(attention, ids):
            return _of_square(name, attention, ids)
        return _of_new_tokens(_of_tokens(name, attention), inputs, decoder=decoder)
    for name in ("tgt_key_padding_mask" if decoder else "src_key_padding_mask", "key_padding_mask"):
        if isinstance(padding := inputs.get(name), Tensor):
            if padding.dtype == torch.bool:
                return MaskReading(~padding, f"{name}: True is padding")
            return _added(name, padding)
    for name in _EITHER_WAY:
        if not decoder and isinstance(padding := inputs.get(name), Tensor):
            if (name, model_type) != ("input_mask", "xlnet"):
                raise InputError(
                    f"{name} marks padding in some models and tokens in others; {_SAY}"
                )
            return MaskReading(padding == 0, f"{name}: 1 is padding, as in XLNet")
    if not decoder:  # other masks apply to the encoder's tokens
        _refuse_unread(inputs, model_type)
    return MaskReading(None, "none: every position is a token")


def _refuse_several(name: str, inputs: Mapping[str, Any]) -> None:
    """Raise if there are two texts, such as a question and a passage, each with a mask."""
    alike = [
        other
        for other, value in inputs.items()
        if other.endswith(name) and isinstance(value, Tensor) and value.ndim == 2
        if not (name == "attention_mask" and other.startswith(("decoder_", "cross_", "encoder_")))
    ]
    if len(alike) > 1:
        raise InputError(
            f"the inputs have {' and '.join(alike)}, and it is unclear which of them applies to "
            "these blocks; specify it: trace(..., token_mask=...), True for a token."
        )


def _refuse_unread(inputs: Mapping[str, Any], model_type: str | None) -> None:
    """Raise for zeros and ones under a name that does not determine their meaning.

    Integers may be token types; in models of Transformers, only names identify masks.
    """
    tensors = {
        name: value
        for name, value in inputs.items()
        if isinstance(value, Tensor) and value.layout == torch.strided and not value.is_nested
    }
    ids = ids_among(inputs, decoder=False)
    for name, value in tensors.items():
        if value.ndim != 2 or len(tensors) == 1 or any(word in name for word in _OF_SOMETHING_ELSE):
            continue
        integers = not value.is_floating_point() and value.dtype != torch.bool
        named = "mask" in name or name.startswith(UNNAMED)
        if model_type is not None and integers and not named:
            continue
        marks = bool(((value == 0) | (value == 1)).all())
        if marks and not bool(value.all()) and bool(value.any()) and not _differs(value, ids):
            raise InputError(f"{name} may be a mask that marks tokens or padding; {_SAY}")


def _may_be_of_pairs(mask: Tensor, ids: Ids | None) -> bool:
    """Whether the shape of a mask fits pairs of tokens, as far as their number is known."""
    return mask.shape[0] == mask.shape[1] and (ids is None or ids.tokens == len(mask))


def _differs(mask: Tensor, ids: Ids | None) -> bool:
    """Whether a mask can only be of pairs of tokens, and differs between queries."""
    can_only = ids is not None and ids.batch != len(mask) and _may_be_of_pairs(mask, ids)
    return can_only and bool((mask != mask[:1]).any())


def _of_square(name: str, mask: Tensor, ids: Ids | None) -> MaskReading:
    """A square mask: of pairs of tokens, or of as many samples as tokens."""
    if ids is not None and ids.batch != len(mask):
        return _of_pairs(name, mask[None])
    tokens = _of_tokens(name, mask).mask
    if tokens is not None and bool(tokens.all()):
        return MaskReading(None, f"{name}: hides no token")
    raise InputError(
        f"{name} of shape {tuple(mask.shape)} may apply to pairs of tokens, or to the tokens of as "
        f"many samples; {_SAY}"
    )


def _of_tokens(name: str, mask: Tensor) -> MaskReading:
    """A mask that is one at tokens, or that is added to logits and is zero at tokens."""
    if mask.dtype == torch.bool:
        return MaskReading(mask, f"{name}: True is a token")
    counts = bool(((mask == 0) | (mask == 1)).all())
    # As a 0/1 mask, zeros would leave no token; added to logits, they leave all.
    if counts and not (mask.is_floating_point() and not bool(mask.any())):
        return MaskReading(mask.bool(), f"{name}: 1 is a token")
    if not mask.is_floating_point() and bool((mask >= 0).all()):
        return MaskReading(mask > 0, f"{name}: more than 0 is a token")  # 2: a global token
    return _added(name, mask)


def _of_new_tokens(
    reading: MaskReading, inputs: Mapping[str, Any], *, decoder: bool
) -> MaskReading:
    """With a cache, a mask begins with its tokens, and may include slots that are still empty."""
    ids = ids_among(inputs, decoder=decoder)
    if reading.mask is None or ids is None or ids.past is None:
        return reading
    past, width, end = ids.past, reading.mask.shape[-1], ids.past + ids.tokens
    if width == ids.tokens and not past:
        return reading
    if width < end:
        raise InputError(
            f"the mask has {width} entries per sample for {past} tokens in the cache and "
            f"{ids.tokens} new ones; pass one entry for each, those in the cache first."
        )
    words = f"{reading.words}; entries {past} to {end - 1}, the others belong to the cache"
    return MaskReading(reading.mask[..., past:end], words, reading.mask[..., :end])


def _added(name: str, mask: Tensor) -> MaskReading:
    is_token = mask == 0
    if bool((is_token | (mask <= _FAR_BELOW)).all()):
        return MaskReading(is_token, f"{name}: added to logits, 0 is a token")
    raise InputError(
        f"{name} is {mask.dtype} with values from {float(mask.min()):g} to {float(mask.max()):g}, "
        f"neither a mask of 0 and 1 nor one of 0 and minus infinity that is added to logits; {_SAY}"
    )


def _of_pairs(name: str, mask: Tensor) -> MaskReading:
    """A mask of queries and keys; a key that no query sees looks like padding."""
    seen = mask if mask.dtype == torch.bool else _seen(mask)
    if seen is not None and bool(seen.flatten(1, -2).any(1).all()):
        return MaskReading(None, f"{name}: a mask of pairs; every token is visible to some query")
    raise InputError(
        f"{name} of shape {tuple(mask.shape)} applies to pairs of tokens and hides some tokens "
        f"from all queries, which may or may not be padding; {_SAY}"
    )


def _seen(mask: Tensor) -> Tensor | None:
    """Where a mask of numbers lets a query see a key; None if it cannot be interpreted."""
    if bool(((mask == 0) | (mask <= _FAR_BELOW)).all()):
        return mask == 0
    return mask > 0 if bool(((mask == 0) | (mask == 1)).all()) else None


class TokenChoice:
    """Real tokens, from the mask, and those among them that are measured.

    Hidden states may be longer than the input, if the model pads it itself, or shorter.
    """

    def __init__(
        self, mask: MaskReading, measured: Tensor | None, ids: Ids | None, model_type: str | None
    ) -> None:
        # On the host, so that using them while the model runs needs no GPU synchronisation.
        tokens, keys = _checked(mask.mask, "token_mask"), _checked(mask.key_mask, "token_mask")
        self._past = past = None if ids is None else ids.past
        if tokens is not None and ids and past and tokens.shape[-1] == past + ids.tokens:
            tokens, keys = tokens[..., past:], tokens  # it includes the tokens in the cache
        self._mask, self._mask_of_keys = tokens, tokens if keys is None else keys
        self._measured = _checked(measured, "measured")
        self._ids = ids if ids is not None and ids.are_ids else None
        self._model_type = model_type
        self.words = {"mask": mask.words}
        self._masks_by_shape: dict[tuple[int, int, torch.device], Tensor | None] = {}
        self._keys: dict[torch.device, Tensor] = {}

    def keys(self, count: int, device: torch.device) -> Tensor | None:
        """The mask of real tokens among ``count`` keys of attention."""
        mask = self._mask_of_keys
        if mask is None:
            return None
        if self._past is not None and mask.shape[-1] < count and bool(mask.all()):
            return None  # no padding, only empty slots of a cache, which no query sees
        if mask.shape[-1] != count:
            raise ShapeError(
                f"token_mask has shape {tuple(mask.shape)}, but attention has {count} keys; pass "
                "token_mask= with one entry per key, or omit attention metrics."
            )
        if device not in self._keys:  # layers may be spread over devices
            self._keys[device] = mask.to(device, non_blocking=True)
        return self._keys[device]

    def measured(self, hidden: Tensor) -> Tensor | None:
        """The mask of the tokens to measure, as long as the hidden states.

        Computed once for all layers of one shape.
        """
        key = (hidden.shape[0], hidden.shape[1], hidden.device)
        if key not in self._masks_by_shape:
            mask = self._find((hidden.shape[0], hidden.shape[1]))
            mask = None if mask is None else mask.to(hidden.device, non_blocking=True)
            self._masks_by_shape[key] = mask
        return self._masks_by_shape[key]

    def _find(self, shape: tuple[int, int]) -> Tensor | None:
        mask = self._fit("token_mask", self._mask, shape)
        if mask is None:
            mask = self._own_padding(shape)
        measured = measured_tokens(self._fit("measured", self._measured, shape), mask, shape)
        return None if measured is None else mask_like(measured, shape)

    def _fit(self, name: str, mask: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
        """A mask as long as the hidden states, if the difference can only be padding."""
        if mask is None or mask.shape[-1] == shape[1]:
            return mask
        entries, width = mask.shape[-1], shape[1]
        if entries > width and not mask[..., width:].any():
            # PyTorch's nested fast path cuts a batch to its longest sequence.
            return mask[..., :width]
        if entries < width and self._model_type in PADS_ON_THE_RIGHT:
            self.words["padding"] = f"{width - entries} positions the model adds on the right"
            return torch.nn.functional.pad(mask, (0, width - entries))
        raise ShapeError(
            f"{name} has shape {tuple(mask.shape)}, but the hidden states have {shape[0]} samples "
            f"of {width} tokens; pass {name}= with one entry per token. If layers differ in "
            "length, trace without a mask, samples of one length at a time."
        )

    def _own_padding(self, shape: tuple[int, int]) -> Tensor | None:
        """Without a mask, the padding that a model is known to add to its input."""
        if self._ids is None or shape[1] == self._ids.tokens:
            return None
        tokens, width = self._ids.tokens, shape[1]
        if width > tokens and self._model_type in PADS_ON_THE_RIGHT:
            self.words["padding"] = f"{width - tokens} positions the model adds on the right"
            return torch.arange(width).expand(shape) < tokens
        self.words["tokens"] = f"{width} per layer for {tokens} in the input; all are measured"
        return None


def _checked(mask: Tensor | None, name: str) -> Tensor | None:
    return None if mask is None else valid_mask(mask, getattr(mask, "shape", ()), name=name).cpu()
