"""Our network beside the original, on a small random input with padding on either side."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rankscope.arguments import checked
from rankscope.core.network import Network
from rankscope.core.tabular import Tabular
from rankscope.core.tracing import captured_states, evaluating
from rankscope.errors import VerificationError
from rankscope.models.families._family import Family, Original
from rankscope.numerals import short
from rankscope.streams import stream

if TYPE_CHECKING:
    import polars

_TOKENS = 12


def probe(family: Family, body: Original) -> dict[str, Any]:
    """Keyword arguments for the original: three short sequences, or two images of noise."""
    generator = stream(0, "probe")
    config, weight = body.config, next(body.parameters())
    if sees_images(body):
        return {"pixel_values": torch.randn(2, *image_shape(body), generator=generator).to(weight)}
    most = getattr(config, "max_position_embeddings", None) or -1
    tokens = min(_TOKENS, most - 2) if most > 0 else _TOKENS  # XLNet says -1: no limit
    ids = torch.randint(0, config.vocab_size, (3, tokens), generator=generator)
    padding = getattr(config, "pad_token_id", None) or 0
    ids = torch.where(ids == padding, (padding + 1) % config.vocab_size, ids)
    mask = torch.ones(3, tokens, dtype=torch.bool)
    mask[0, : tokens // 3] = False
    mask[1, -(tokens // 4) :] = False
    arguments: dict[str, Any] = {
        "input_ids": torch.where(mask, ids, padding),
        "attention_mask": mask.long(),
    }
    if family.takes_positions:
        arguments["position_ids"] = family.positions(mask, config)
    return {name: tensor.to(weight.device) for name, tensor in arguments.items()}


def sees_images(body: Original) -> bool:
    """Whether a model's input is images, not token ids."""
    return hasattr(body.config, "image_size")


def image_shape(body: Original) -> tuple[int, int, int]:
    """Channels, height and width of the images a model sees."""
    size = body.config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    return body.config.num_channels, height, width


TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Largest relative error allowed per dtype. Halves differ by their rounding, layer after layer; in
float64 rotary tables, which are float32 everywhere, differ by a rounding from device to device."""


@checked
@dataclass(frozen=True, repr=False)
class Verification(Tabular):
    """The relative error of each layer's output."""

    family: str
    errors: tuple[float, ...]
    tolerance: float

    @property
    def worst(self) -> float:
        """The largest error of any layer."""
        return max(self.errors)

    @property
    def table(self) -> "polars.DataFrame":
        """One row per layer: layer, metric ``relative_error``, value."""
        from rankscope import tables

        rows = [(layer, "relative_error", error) for layer, error in enumerate(self.errors, 1)]
        return tables.from_rows(("layer", "metric", "value"), rows)

    def check(self) -> None:
        """Raise if a layer differs too much, naming the first."""
        for layer, error in enumerate(self.errors, start=1):
            if not error <= self.tolerance:
                raise VerificationError(
                    f"{self.family}: our layer {layer} differs from the original by "
                    f"{short(error)} (relative, {short(self.tolerance, digits=1)} allowed); the "
                    "conversion does not fit this model. rankscope.trace works on it without "
                    "conversion."
                )

    def __repr__(self) -> str:
        return (
            f"Verification of {self.family}: largest relative error of {len(self.errors)} layers "
            f"{short(self.worst)} (tolerance {short(self.tolerance, digits=1)})"
        )

    def __str__(self) -> str:
        rows = [f"  layer {k:>3}   {short(error)}" for k, error in enumerate(self.errors, start=1)]
        allowed = short(self.tolerance, digits=1)
        head = f"{self.family}: relative error of each layer (tolerance {allowed})"
        return "\n".join([head, *rows])


def compare(family: Family, body: nn.Module, network: Network) -> Verification:
    """Run both on the same input and compare every layer's output."""

    def relative_error(mine: Tensor, other: Tensor) -> float:
        size = torch.linalg.vector_norm(other.double())
        error = torch.linalg.vector_norm(mine.double() - other.double())
        return float(error / size) if size > 0 else float(error)

    arguments = probe(family, body)
    mask = arguments.get("attention_mask")
    token_mask = None if mask is None else mask.bool()
    valid = slice(None) if token_mask is None else token_mask.cpu()
    with evaluating(body), torch.no_grad():
        with true_precision(body):
            x, *theirs = states(family, body, arguments)
        errors = tuple(
            relative_error(mine.cpu()[valid], other.cpu()[valid])
            for mine, other in zip(network.states(x, token_mask), theirs, strict=True)
        )
    return Verification(family.name, errors, TOLERANCES[x.dtype])


def states(family: Family, body: Original, arguments: Mapping[str, Any]) -> list[Tensor]:
    """The original's own hidden states: the blocks' input, then every block's output."""
    captured = captured_states(family.layers(body), lambda: body(**arguments))
    return [family.batch_first(state) for state in captured]


@contextmanager
def true_precision(original: nn.Module) -> Iterator[None]:
    """Let the original's RMSNorms compute in the model's precision while the context lasts.

    They step down to float32 inside, also in a float64 model; ours do not, and in float64 the
    difference, not the conversion, would be what is compared.
    """
    with ExitStack() as undo:
        for module in original.modules():
            eps, gain = getattr(module, "variance_epsilon", None), getattr(module, "weight", None)
            if eps is not None and isinstance(gain, Tensor) and gain.dtype == torch.float64:
                if "forward" in vars(module):  # its own, which Accelerate gives it
                    undo.callback(setattr, module, "forward", vars(module)["forward"])
                undo.callback(delattr, module, "forward")  # before that: the last comes first
                module.forward = partial(_rms_norm, module, eps)
        yield


def _rms_norm(module: Original, eps: float, hidden: Tensor) -> Tensor:
    return nn.functional.rms_norm(hidden, hidden.shape[-1:], module.weight, eps)
