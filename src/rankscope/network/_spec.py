"""The description of a network: a frozen value, validated, hashable, with a stable digest."""

import hashlib
import json
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args

from torch import Tensor

from rankscope.errors import KindError, SpecError
from rankscope.masks import Mask, as_mask
from rankscope.network._activations import activation as activation_record
from rankscope.network._initialisation import Init, as_init
from rankscope.network._norms import NORMS, NormKind
from rankscope.network._scores.base import ScoreKind
from rankscope.version import __version__

NormPlace = Literal["pre", "post", "both"]


@dataclass(frozen=True, init=False)
class Spec:
    """What a network is made of, without its weights.

    >>> Spec(12, 12, 768, norm_place="post").head_width
    64

    ``skip`` is True (1), False (0) or a scale for both skips; ``attention_skip`` and ``mlp_skip``
    override it for one of them (None: as ``skip``; the two in force are ``skips``). ``mlp_ratio``
    0 means no MLP, ``mlp_identity`` the identity in its place. ``norm_place="both"`` is the
    sandwich ``x + N(f(N(x)))``. ``layer_masks`` gives each layer a mask of its own;
    ``removed_heads`` are (layer, head) pairs, counted from 0, that stay silent. ``score_scale``
    multiplies the logits; None is ``1/√head_width``. ``init`` is a name, a standard deviation or an
    ``Init``. Skips, masks and initialisations that come to the same make equal specs.
    """

    layers: int
    heads: int
    width: int
    head_width: int
    kv_heads: int
    mlp_ratio: float
    activation: str
    gated: bool
    mlp_identity: bool
    removed_heads: tuple[tuple[int, int], ...]
    norm: NormKind
    norm_place: NormPlace
    norm_eps: float
    parallel: bool
    skip: float
    attention_skip: float | None
    mlp_skip: float | None
    mask: Mask
    layer_masks: tuple[Mask, ...] | None
    bias: bool
    shared_layers: bool
    scores: ScoreKind | Literal["dot"]
    score_scale: float
    init: Init

    def __init__(
        self,
        layers: int,
        heads: int,
        width: int,
        *,
        head_width: int | None = None,
        kv_heads: int | None = None,
        mlp_ratio: float = 4.0,
        activation: str = "gelu",
        gated: bool = False,
        mlp_identity: bool = False,
        removed_heads: Iterable[tuple[int, int]] = (),
        norm: NormKind = "layer",
        norm_place: NormPlace = "pre",
        norm_eps: float = 1e-5,
        parallel: bool = False,
        skip: bool | float = True,
        attention_skip: bool | float | None = None,
        mlp_skip: bool | float | None = None,
        mask: str | Mask | Tensor = "full",
        layer_masks: Sequence[str | Mask | Tensor] | None = None,
        bias: bool = True,
        shared_layers: bool = False,
        scores: ScoreKind | Literal["dot"] = "dot",
        score_scale: float | None = None,
        init: str | float | Init = "bert",
    ) -> None:
        for name, count in {"layers": layers, "heads": heads, "width": width}.items():
            _positive_integer(name, count)
        head_width = _divided(width, heads) if head_width is None else head_width
        _positive_integer("head_width", head_width)
        kv_heads = heads if kv_heads is None else kv_heads
        _positive_integer("kv_heads", kv_heads)
        if heads % kv_heads:
            raise SpecError(f"heads={heads} is no multiple of kv_heads={kv_heads}; use a divisor.")
        mlp_ratio = _scale("mlp_ratio", mlp_ratio)
        if not mlp_ratio * width < 2**31:
            raise SpecError(f"mlp_ratio={mlp_ratio} of width {width} is more than can be built.")
        if mlp_ratio and round(mlp_ratio * width) < 1:
            raise SpecError(f"mlp_ratio={mlp_ratio} of width {width} leaves no hidden unit.")
        activation_record(activation)
        _one_of("norm", norm, tuple(NORMS))
        _one_of("norm_place", norm_place, get_args(NormPlace))
        if isinstance(scores, type):
            raise SpecError(f"scores={scores.__name__} is a class; write {scores.__name__}().")
        if scores != "dot" and not isinstance(scores, ScoreKind):
            raise SpecError(f"scores={scores!r} is neither 'dot' nor a description with .build().")
        if mlp_identity and parallel and mlp_ratio:
            raise SpecError(
                "mlp_identity in a parallel block would be a second skip; leave the MLP out "
                "instead: without('mlp')."
            )
        skip, attention_skip = _canonical_skips(
            skip, attention_skip, mlp_skip, has_mlp=mlp_ratio > 0, parallel=parallel
        )
        score_scale = 1 / math.sqrt(head_width) if score_scale is None else score_scale
        mask, own_masks = _settled_masks(mask, layer_masks, layers)
        flags = {
            "gated": gated,
            "mlp_identity": mlp_identity,
            "parallel": parallel,
            "bias": bias,
            "shared_layers": shared_layers,
        }
        for name, flag in flags.items():
            if not isinstance(flag, bool):
                raise KindError(f"{name}={flag!r} is a {type(flag).__name__}, expected a bool.")
        settled = {
            "layers": layers,
            "heads": heads,
            "width": width,
            "head_width": head_width,
            "kv_heads": kv_heads,
            "mlp_ratio": mlp_ratio,
            "activation": activation,
            "gated": gated,
            "mlp_identity": mlp_identity and mlp_ratio > 0,
            "removed_heads": _heads(removed_heads, layers, heads),
            "norm": norm,
            "norm_place": norm_place,
            "norm_eps": _scale("norm_eps", norm_eps),
            "parallel": parallel,
            "skip": skip,
            "attention_skip": attention_skip,
            "mlp_skip": None,
            "mask": mask,
            "layer_masks": own_masks,
            "bias": bias,
            "shared_layers": shared_layers,
            "scores": scores,
            "score_scale": _scale("score_scale", score_scale),
            "init": as_init(init),
        }
        for name, value in settled.items():
            object.__setattr__(self, name, value)

    @property
    def skips(self) -> tuple[float, float]:
        """The scales of the attention's and the MLP's skip; 0 means none."""
        return (self.skip if self.attention_skip is None else self.attention_skip, self.skip)

    @property
    def masks(self) -> tuple[Mask, ...]:
        """The mask of each layer."""
        return (self.mask,) * self.layers if self.layer_masks is None else self.layer_masks

    @property
    def mlp_width(self) -> int:
        """Hidden units of the MLP; 0 means there is none."""
        return round(self.mlp_ratio * self.width)

    def digest(self, *, seed: int | None = None) -> str:
        """Twelve hex digits that name this spec, a seed and this version of the code."""
        content = {f.name: repr(getattr(self, f.name)) for f in fields(self)}
        content |= {"seed": str(seed), "version": __version__}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _canonical_skips(
    skip: bool | float,
    attention_skip: bool | float | None,
    mlp_skip: bool | float | None,
    *,
    has_mlp: bool,
    parallel: bool,
) -> tuple[float, float | None]:
    """``(skip, attention_skip)`` with the second None unless the two skips differ."""
    both = _scale("skip", skip)
    attention = both if attention_skip is None else _scale("attention_skip", attention_skip)
    mlp = both if mlp_skip is None else _scale("mlp_skip", mlp_skip)
    if not has_mlp:
        mlp = attention
    if parallel and attention != mlp:
        raise SpecError(
            f"attention_skip={attention:g} and mlp_skip={mlp:g} differ, but a parallel block has "
            "one skip around both parts; set skip alone."
        )
    return mlp, None if attention == mlp else attention


def _settled_masks(
    mask: str | Mask | Tensor, own: Sequence[str | Mask | Tensor] | None, layers: int
) -> tuple[Mask, tuple[Mask, ...] | None]:
    """One mask for all layers, or the first layer's and, where they differ, one for each."""
    if own is None:
        return as_mask(mask), None
    if not isinstance(own, Sequence) or isinstance(own, str):
        raise KindError(f"layer_masks is a {type(own).__name__}, expected a mask for each layer.")
    if len(own) != layers:
        raise SpecError(f"layer_masks has {len(own)} masks for {layers} layers; give one each.")
    try:
        masks = tuple(as_mask(each) for each in own)
    except (SpecError, KindError) as error:
        raise type(error)(f"layer_masks: {error}") from error
    return masks[0], None if len(set(masks)) == 1 else masks


def _heads(
    removed: Iterable[tuple[int, int]], layers: int, heads: int
) -> tuple[tuple[int, int], ...]:
    try:
        pairs = sorted({(operator.index(layer), operator.index(head)) for layer, head in removed})
    except (TypeError, ValueError):
        raise KindError(
            f"removed_heads={removed!r} are no (layer, head) pairs; write [(0, 3), (1, 7)]."
        ) from None
    for layer, head in pairs:
        if not (0 <= layer < layers and 0 <= head < heads):
            raise SpecError(
                f"removed_heads: there is no head {head} in layer {layer}; "
                f"layers are 0 to {layers - 1}, heads 0 to {heads - 1}."
            )
    return tuple(pairs)


def _divided(width: int, heads: int) -> int:
    if width % heads:
        raise SpecError(
            f"width={width} does not divide into {heads} heads; choose a multiple, "
            "or say head_width yourself."
        )
    return width // heads


def _positive_integer(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise KindError(f"{name}={value!r} is a {type(value).__name__}, expected a whole number.")
    if value < 1:
        raise SpecError(f"{name}={value} is out of range; expected 1 or more.")


def _scale(name: str, value: bool | float) -> float:
    if not isinstance(value, (bool, int, float)):
        raise KindError(f"{name}={value!r} is a {type(value).__name__}, expected a number.")
    if not (math.isfinite(value) and value >= 0):
        raise SpecError(f"{name}={value} is out of range; expected a finite number >= 0.")
    return float(value) + 0.0  # -0.0 and 0.0 are one scale


def _one_of(name: str, got: str, expected: tuple[str, ...]) -> None:
    if got not in expected:
        raise SpecError(f"{name}={got!r} is unknown; choose one of {', '.join(expected)}.")
