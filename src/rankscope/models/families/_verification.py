"""Our network beside the original, on small random inputs with padding on either side."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from rankscope.arguments import checked
from rankscope.core.network import Network
from rankscope.core.tabular import Tabular
from rankscope.core.tracing import captured_states, evaluating
from rankscope.errors import UnsupportedModelError, VerificationError
from rankscope.models.families._family import Family, Original, config_of
from rankscope.models.families._precision import full_precision
from rankscope.models.families._recognition import TOLERANCES, relative_error
from rankscope.numerals import short
from rankscope.streams import stream

if TYPE_CHECKING:
    import polars

_TOKENS = 12
LONGER = 160
"""Tokens of the second probe, which shows windows and what else depends on the length."""


class Probe(NamedTuple):
    """Arguments on which an original runs, and which of its tokens are real (None: all)."""

    arguments: dict[str, Any]
    token_mask: Tensor | None


def probe(family: Family, body: Original, *, tokens: int = _TOKENS) -> Probe:
    """Random input: three short texts with padding on either side, or two images or sounds."""
    generator, config = stream(0, "probe"), config_of(body)
    weight = next(body.parameters())
    kind = getattr(body, "main_input_name", "input_ids")
    if kind != "input_ids":
        shape = media_shape(body)
        return Probe({kind: torch.randn(2, *shape, generator=generator).to(weight)}, None)
    words = getattr(config, "vocab_size", None)
    if not words:
        raise UnsupportedModelError(
            f"{type(body).__name__} states no vocab_size, so there is nothing to try it on; give "
            "an input: rankscope.load(model, probe=ids)."
        )
    most = family.most_tokens(body)
    tokens = tokens if most is None else min(tokens, most)
    ids = torch.randint(0, words, (3, tokens), generator=generator)
    padding = getattr(config, "pad_token_id", None) or 0
    ids = torch.where(ids == padding, (padding + 1) % words, ids)
    mask = torch.ones(3, tokens, dtype=torch.bool)
    if family.takes(body, "attention_mask"):
        mask[1, -(tokens // 4) :] = False
        if family.takes(body, "position_ids") or not family.most_tokens(body):
            mask[0, : tokens // 3] = False
    return Probe(text_arguments(family, body, ids.to(weight.device), mask.to(weight.device)), mask)


def text_arguments(
    family: Family, body: Original, ids: Tensor, token_mask: Tensor
) -> dict[str, Any]:
    """Token ids (or embeddings in their place) and their mask as the original takes them."""
    arguments: dict[str, Any] = {}
    if family.takes(body, "attention_mask"):
        arguments["attention_mask"] = token_mask.long()
    if family.takes(body, "position_ids"):
        arguments["position_ids"] = family.positions(body, token_mask)
    if ids.is_floating_point():
        return {"inputs_embeds": ids, **arguments}
    padding = getattr(config_of(body), "pad_token_id", None) or 0
    name = "input_ids" if family.takes(body, "input_ids") else _first_argument(body)
    # Some originals read the padding off the ids.
    return {name: torch.where(token_mask, ids, padding), **arguments}


def _first_argument(body: Original) -> str:
    return next(iter(inspect.signature(body.forward).parameters))


def sees_images(body: Original) -> bool:
    """Whether a model's input is images, not token ids."""
    return getattr(body, "main_input_name", "input_ids") == "pixel_values"


def media_shape(body: Original) -> tuple[int, ...]:
    """The shape of one image, spectrogram or sound as a model takes it."""
    config, kind = config_of(body), body.main_input_name
    size = getattr(config, "image_size", None)
    if kind == "pixel_values" and size is not None:
        height, width = (size, size) if isinstance(size, int) else size
        return getattr(config, "num_channels", 3), height, width
    bins, frames = (
        getattr(config, "num_mel_bins", None),
        getattr(config, "max_source_positions", None),
    )
    if kind == "input_features" and bins and frames:
        return bins, 2 * frames
    if kind == "input_values":
        return (4000,)
    raise UnsupportedModelError(
        f"{type(body).__name__} takes {kind} of a shape its configuration does not state; give an "
        "input: rankscope.load(model, probe={...})."
    )


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


def compare(family: Family, body: nn.Module, network: Network, *probes: Probe) -> Verification:
    """Run both on the same inputs and compare every layer's output; the largest error counts."""
    worst = [0.0] * network.spec.layers
    with evaluating(body), torch.no_grad():
        for arguments, token_mask in probes:
            with full_precision():
                x, *theirs = states(family, body, arguments)
            mask = None if token_mask is None else token_mask.to(x.device)
            errors = (
                relative_error(mine, other, token_mask)
                for mine, other in zip(network.states(x, mask), theirs, strict=True)
            )
            # Not max(), which would drop a NaN.
            worst = [new if not new <= old else old for old, new in zip(worst, errors, strict=True)]
    return Verification(family.name, tuple(worst), TOLERANCES[x.dtype])


def states(family: Family, body: Original, arguments: Mapping[str, Any]) -> list[Tensor]:
    """The original's own hidden states: the blocks' input, then every block's output."""
    captured = captured_states(family.layers_of(body), lambda: body(**arguments))
    return [family.batch_first(state) for state in captured]
