"""The input on which a conversion is verified: small, random, with padding on either side."""

from typing import Any

import torch
from torch import Tensor

from rankscope.models.families.family import Family, Original
from rankscope.streams import stream

_TOKENS = 12


def probe(family: Family, body: Original) -> dict[str, Any]:
    """Keyword arguments for the original: three short sequences, or two images of noise."""
    generator = stream(0, "probe")
    config = body.config
    device = next(body.parameters()).device
    if sees_images(body):
        pixels = torch.randn(2, *image_shape(body), generator=generator)
        return {"pixel_values": pixels.to(device, next(body.parameters()).dtype)}
    most = getattr(config, "max_position_embeddings", None) or -1
    tokens = min(_TOKENS, most - 2) if most > 0 else _TOKENS  # XLNet says -1: no limit
    ids = torch.randint(0, config.vocab_size, (3, tokens), generator=generator)
    padding = getattr(config, "pad_token_id", None)
    padding = 0 if padding is None else padding
    ids = torch.where(ids == padding, (padding + 1) % config.vocab_size, ids)
    mask = _padded_left_right_and_not(tokens)
    arguments: dict[str, Any] = {
        "input_ids": torch.where(mask, ids, padding).to(device),
        "attention_mask": mask.long().to(device),
    }
    if family.takes_positions:
        arguments["position_ids"] = family.positions(mask, config).to(device)
    return arguments


def _padded_left_right_and_not(tokens: int) -> Tensor:
    mask = torch.ones(3, tokens, dtype=torch.bool)
    mask[0, : tokens // 3] = False
    mask[1, -(tokens // 4) :] = False
    return mask


def sees_images(body: Original) -> bool:
    """Whether a model's input is images, not token ids."""
    return hasattr(body.config, "image_size")


def image_shape(body: Original) -> tuple[int, int, int]:
    """Channels, height and width of the images a model sees."""
    size = body.config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    return body.config.num_channels, height, width
