"""Our network beside the original, on small random inputs with padding on either side."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from rankscope.arguments import checked
from rankscope.core.network import Network
from rankscope.core.tabular import Tabular
from rankscope.core.tracing import captured_states, evaluating
from rankscope.errors import UnsupportedModelError, VerificationError
from rankscope.models.families._family import Family, Original, config_of, run_original
from rankscope.models.recognition import (
    TOLERANCES,
    full_precision,
    relative_error,
)
from rankscope.numerals import short
from rankscope.streams import stream

if TYPE_CHECKING:
    import polars

_SHORT, _LONG = 12, 160
_LIMITS = ("max_position_embeddings", "n_positions", "max_source_positions")


class Probe(NamedTuple):
    """Arguments on which an original runs, and which of its tokens are real (None: all)."""

    arguments: dict[str, Any]
    token_mask: Tensor | None


def probes(family: Family, body: Original) -> list[Probe]:
    """Random input to recognise a model on, and to verify it on.

    Of text, one longer sequence, which shows windows and what else depends on the length, and
    three short ones with padding on either side; otherwise two images or sounds.
    """
    generator, config = stream(0, "probe"), config_of(body)
    weight = next(body.parameters())
    kind = getattr(body, "main_input_name", "input_ids")
    if kind != "input_ids":
        noise = torch.randn(2, *media_shape(body), generator=generator)
        return [Probe({kind: noise.to(weight)}, None)]
    words = getattr(config, "vocab_size", None)
    if not words:
        raise UnsupportedModelError(
            f"{type(body).__name__} states no vocab_size, so there is nothing to try it on; give "
            "an input: rankscope.load(model, probe=ids)."
        )
    limits = [family.most_tokens(body), *(getattr(config, name, None) for name in _LIMITS)]
    most = min((limit for limit in limits if limit and limit > 0), default=_LONG)
    padding = getattr(config, "pad_token_id", None) or 0

    def text(samples: int, tokens: int) -> Tensor:
        ids = torch.randint(0, words, (samples, tokens), generator=generator)
        return torch.where(ids == padding, (padding + 1) % words, ids).to(weight.device)

    tokens = min(_SHORT, most)
    mask = torch.ones(3, tokens, dtype=torch.bool, device=weight.device)
    if family.takes(body, "attention_mask") and tokens >= 4:
        mask[1, -(tokens // 4) :] = False
        if family.takes(body, "position_ids") or family.most_tokens(body) is None:
            mask[0, : tokens // 3] = False
    long = text(1, min(_LONG, most))
    every = torch.ones_like(long, dtype=torch.bool)
    return [
        Probe(text_arguments(family, body, ids, real), real)
        for ids, real in ((long, every), (text(3, tokens), mask))
    ]


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
    size, channels = getattr(config, "image_size", None), getattr(config, "num_channels", 3)
    if kind == "pixel_values" and size:
        height, width = (size, size) if isinstance(size, int) else size
        return channels, height, width
    bins = getattr(config, "num_mel_bins", None)
    frames = getattr(config, "max_source_positions", None)
    if kind == "input_features" and bins and frames:
        return bins, 2 * frames
    if kind == "input_values" and not bins:
        return (4000,)
    raise UnsupportedModelError(
        f"{type(body).__name__} takes {kind} of a shape its configuration does not state; give an "
        "input: rankscope.load(model, probe={...})."
    )


@checked
@dataclass(frozen=True, repr=False)
class Verification(Tabular):
    """The relative error of each layer's output.

    >>> import transformers
    >>> from rankscope import verify
    >>> small = transformers.GPT2Config(vocab_size=9, n_positions=9, n_embd=8, n_layer=2, n_head=2)
    >>> found = verify(transformers.GPT2Model(small))
    >>> len(found.errors), found.worst < found.tolerance
    (2, True)
    """

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


def compare(
    family: Family, body: nn.Module, network: Network, inputs: Sequence[Probe]
) -> Verification:
    """Run both on the same inputs and compare every layer's output; the largest error counts."""
    worst = [0.0] * network.spec.layers
    with evaluating(body), torch.no_grad():
        for arguments, token_mask in inputs:
            with full_precision():
                x, *theirs = states(family, body, arguments)
            if len(theirs) != len(worst):
                raise VerificationError(
                    f"{family.name}: the description names {len(worst)} layers, but {len(theirs)} "
                    "of them ran; name each block as often as it runs, in order."
                )
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
    run = partial(run_original, body, arguments)
    return [family.batch_first(state) for state in captured_states(family.layers_of(body), run)]
