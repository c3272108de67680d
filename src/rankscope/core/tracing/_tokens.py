"""Which positions of the hidden states are tokens that count."""

import torch
from torch import Tensor

from rankscope.core.checks import measured_tokens, valid_mask
from rankscope.core.tracing._inputs import PADS_ON_THE_RIGHT, Ids
from rankscope.core.tracing._masks import MaskReading
from rankscope.errors import ShapeError


class TokenChoice:
    """Real tokens, from the mask that was read, and those among them that are measured.

    Hidden states may be wider than the input, where a model fills it up on its own, or narrower.
    """

    def __init__(
        self,
        mask: MaskReading,
        measured: Tensor | None,
        *,
        ids: Ids | None = None,
        model_type: str | None = None,
    ) -> None:
        # On the host: what is asked of them while the model runs waits for no device.
        told, whole = _checked(mask.mask, "token_mask"), _checked(mask.whole, "token_mask")
        self._past = past = None if ids is None else ids.past
        if told is not None and ids and past and told.shape[-1] == past + ids.tokens:
            told, whole = told[..., past:], told  # of the tokens in the cache as well
        self._mask, self._mask_of_keys = told, told if whole is None else whole
        self._measured = _checked(measured, "measured")
        self._ids = ids if ids is not None and ids.are_ids else None
        self._model_type = model_type
        self.words = {"mask": mask.words}
        self._found: dict[tuple[int, int, torch.device], Tensor | None] = {}
        self._keys: dict[torch.device, Tensor] = {}

    def keys(self, count: int, device: torch.device) -> Tensor | None:
        """The mask of real tokens among the keys of attention, of which there are so many."""
        mask = self._mask_of_keys
        if mask is None:
            return None
        if self._past is not None and mask.shape[-1] < count and bool(mask.all()):
            return None  # no padding, and places of a cache still empty, which no query sees
        if mask.shape[-1] != count:
            raise ShapeError(
                f"token_mask has shape {tuple(mask.shape)}, but attention has {count} keys; give "
                "token_mask= with one entry for each, or leave metrics of attention out."
            )
        if device not in self._keys:  # layers may be spread over devices
            self._keys[device] = mask.to(device, non_blocking=True)
        return self._keys[device]

    def measured(self, hidden: Tensor) -> Tensor | None:
        """The mask of the tokens to measure, as wide as the hidden states.

        Found once for all layers of one shape.
        """
        key = (hidden.shape[0], hidden.shape[1], hidden.device)
        if key not in self._found:
            found = self._find((hidden.shape[0], hidden.shape[1]))
            self._found[key] = None if found is None else found.to(hidden.device, non_blocking=True)
        return self._found[key]

    def _find(self, shape: tuple[int, int]) -> Tensor | None:
        mask = self._fit("token_mask", self._mask, shape)
        if mask is None:
            mask = self._own_padding(shape)
        found = measured_tokens(self._fit("measured", self._measured, shape), mask, shape)
        return None if found is None else found.expand(shape)

    def _fit(self, name: str, mask: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
        """A mask as wide as the hidden states, if what is cut or added can only be padding."""
        if mask is None or mask.shape[-1] == shape[1]:
            return mask
        given, width = mask.shape[-1], shape[1]
        if given > width and not mask[..., width:].any():
            # PyTorch's nested fast path cuts a batch to its longest sequence.
            return mask[..., :width]
        if given < width and self._model_type in PADS_ON_THE_RIGHT:
            self.words["padding"] = f"{width - given} positions the model adds on the right"
            return torch.nn.functional.pad(mask, (0, width - given))
        raise ShapeError(
            f"{name} has shape {tuple(mask.shape)}, but the hidden states have {shape[0]} samples "
            f"of {width} tokens; give {name}= with one entry for each. If layers differ in "
            "length, trace without a mask, samples of one length at a time."
        )

    def _own_padding(self, shape: tuple[int, int]) -> Tensor | None:
        """Without a mask, what a model is known to add to its input on its own."""
        if self._ids is None or shape[1] == self._ids.tokens:
            return None
        tokens, width = self._ids.tokens, shape[1]
        if width > tokens and self._model_type in PADS_ON_THE_RIGHT:
            self.words["padding"] = f"{width - tokens} positions the model adds on the right"
            return torch.arange(width).expand(shape) < tokens
        self.words["tokens"] = f"{width} in a layer for {tokens} in the input: all of them measured"
        return None


def _checked(mask: Tensor | None, name: str) -> Tensor | None:
    return None if mask is None else valid_mask(mask, getattr(mask, "shape", ()), name=name).cpu()
