"""Settings of the LayerNorm study: networks of attention and a norm only."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rankscope.arguments import checked
from rankscope.core.masks import Explicit, Mask, as_mask
from rankscope.core.network import Init, Network, NormKind, Spec
from rankscope.numerals import plural
from rankscope.streams import stream

RING = "ring"
"""The mask under which each token attends to itself and its two neighbours on a circle."""


@checked
@dataclass(frozen=True)
class NormSetting:
    """Attention with a norm after it, no skip and no MLP; the defaults are the base case.

    ``logits`` multiplies the usual ``1/√head_width``. ``biases`` and ``gains`` are standard
    deviations: of every bias, and of the logarithms of the norms' gains.
    """

    mask: str | Mask = "full"
    heads: int = 4
    width: int = 64
    logits: float = 1.0
    init: str | Init = "lecun"
    biases: float = 0.0
    gains: float = 0.0
    shared: bool = False
    norm: NormKind = "layer"
    tokens: int = 32

    def __str__(self) -> str:
        layers = "one layer repeated" if self.shared else "fresh layers"
        init = self.init if isinstance(self.init, str) else f"{self.init.kind} × {self.init.scale}"
        return (
            f"{self.tokens} tokens of {self.width} features, {plural(self.heads, 'head')}, "
            f"{self.mask} mask, logits × {self.logits:g}, {init} init, biases of {self.biases:g}, "
            f"gains spread by {self.gains:g}, {self.norm} norm after attention, {layers}"
        )


Settings = tuple[tuple[str, NormSetting], ...]
"""Settings by name."""
_NARROW = NormSetting(heads=1, width=4, logits=64.0, tokens=16)
_CASES: dict[str, dict[str, NormSetting]] = {
    "weights": {
        "base": NormSetting(),
        "BERT's weights": NormSetting(init="bert"),
        "logits × 16": NormSetting(logits=16.0),
        "logits × 256": NormSetting(logits=256.0),
    },
    "shape": {
        "1 head": NormSetting(heads=1),
        "16 heads": NormSetting(heads=16),
        "16 features": NormSetting(width=16),
        "256 features": NormSetting(width=256),
    },
    "biases and norms": {
        "biases of 1": NormSetting(biases=1.0),
        "biases of 10": NormSetting(biases=10.0),
        "uneven gains": NormSetting(gains=1.0),
        "RMSNorm": NormSetting(norm="rms"),
        "unit sphere": NormSetting(norm="sphere"),
    },
    "masks and layers": {
        "causal": NormSetting(mask="causal"),
        "window of 4": NormSetting(mask="window:4"),
        "causal window of 4": NormSetting(mask="causal-window:4"),
        "one layer repeated": NormSetting(shared=True),
        "one layer repeated, causal": NormSetting(shared=True, mask="causal"),
    },
    "corners": {
        "16 heads, logits × 256, biases of 10, uneven gains": NormSetting(
            logits=256.0, biases=10.0, gains=1.0, heads=16
        ),
        "64 tokens, window of 4, logits × 256": NormSetting(
            tokens=64, mask="window:4", logits=256.0
        ),
        "16 tokens, 4 features, 1 head, logits × 64": _NARROW,
        "16 tokens, 4 features, 1 head, logits × 64, repeated": replace(_NARROW, shared=True),
        "16 tokens, 1 head, logits × 64, causal, repeated": replace(
            _NARROW, width=64, shared=True, mask="causal"
        ),
    },
}
FACTORS = tuple((factor, tuple(cases.items())) for factor, cases in _CASES.items())
"""The base case, one factor varied at a time, and corners in which several are extreme. A norm
removes any scale of the values, so that larger weights only mean larger logits."""
SWEEPS: Settings = tuple(
    (
        f"{width} features, {plural(heads, 'head')}, {mask}",
        NormSetting(mask=mask, heads=heads, width=width, tokens=16),
    )
    for width in (4, 8, 64)
    for heads in (1, 4)
    for mask in ("full", "causal")
)


def mask_of(name: str, tokens: int) -> Mask:
    """A mask by its name; in the ring the first and the last token are neighbours, too."""
    if name != RING:
        return as_mask(name)
    position = torch.arange(tokens)
    apart = (position[:, None] - position).abs()
    return Explicit.of((apart <= 1) | (apart == tokens - 1))


def random_network(setting: NormSetting, layers: int, seed: int) -> Network:
    """A network of this setting; a deeper one begins with the same layers."""
    head_width = setting.width // setting.heads
    spec = Spec(
        layers,
        setting.heads,
        setting.width,
        mlp_ratio=0.0,
        norm=setting.norm,
        norm_place="post",
        norm_eps=1e-12,
        skip=False,
        mask=setting.mask,
        shared_layers=setting.shared,
        score_scale=setting.logits / math.sqrt(head_width),
        init=setting.init,
    )
    network = Network.random(spec, seed=seed, dtype=torch.float64)

    def draw(name: str, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=stream(seed, name), dtype=torch.float64)

    with torch.no_grad():
        for name, parameter in network.named_parameters():
            module, _, kind = name.rpartition(".")
            if setting.biases and kind == "bias":
                parameter.copy_(setting.biases * draw(name, parameter))
            of_norm = isinstance(network.get_submodule(module), nn.LayerNorm | nn.RMSNorm)
            if setting.gains and of_norm and kind == "weight":
                parameter.copy_((setting.gains * draw(f"{module}.gain", parameter)).exp())
    return network
