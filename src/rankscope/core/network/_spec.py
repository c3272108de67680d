"""The description of a network: frozen, validated, hashable, with a stable digest."""

import math
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from itertools import groupby
from typing import Any, Literal, Self

import torch
from torch import Tensor

from rankscope import numerals
from rankscope.arguments import checked, short
from rankscope.core.checks import flag
from rankscope.core.masks import Mask
from rankscope.core.names import MLP_FORMS, NORM_PLACES, MLPForm, NormPlace
from rankscope.core.network import _fields as check
from rankscope.core.network._activations import ACTIVATIONS
from rankscope.core.network._fields import Field, Init
from rankscope.core.network._norms import NORMS, NormKind
from rankscope.core.network._scores import ScoreKind, Scores
from rankscope.errors import SpecError, UnsupportedModelError
from rankscope.process import fingerprint
from rankscope.version import __version__

AnyMask = str | Mask | Tensor
AnyScores = ScoreKind | Literal["dot"]


@dataclass(frozen=True, repr=False)
class Spec:
    """The architecture of a network, without its weights.

    >>> from rankscope import Spec
    >>> Spec(12, 12, 768, norm_place="post").head_width
    64

    ``skip`` is True (1), False (0) or a scale for both skips; ``attention_skip`` and ``mlp_skip``
    override it for one of them (None: as ``skip``; the two in force are ``skips``). ``mlp_ratio``
    0 means no MLP; ``mlp_as`` replaces it by the identity or its activation; norm and skip stay.
    ``norm_place="both"`` is the sandwich ``x + N(f(N(x)))``, ``"output"`` ``x + N(f(x))``.
    ``layer_masks`` gives each layer its own mask; ``removed_heads`` are (layer, head) pairs,
    counted from 0. ``centered`` attention uses ``P − U`` instead of P, U uniform over the visible
    keys.
    ``score_scale`` multiplies the logits; None is ``1/√head_width``. ``init`` is a name, a standard
    deviation or an ``Init``; "bert", "gpt2" and "t5" initialise as these libraries do.
    ``embedding_scale`` is the root mean square of the entries of the input embeddings. The default
    None means: a standard deviation given as ``init`` if no norm follows each sum (Llama: 0.02;
    "gpt2": √2 times that, for words and positions), and 1 with such norms (BERT normalises its
    embeddings), without norms, and for other kinds of ``init``. ``undescribed`` names parts of a
    loaded model that no other field describes, such as a mixture of experts; random networks
    cannot be drawn from such a spec. Equivalent skips, masks and initialisations give equal specs.
    """

    # Each field once: what may be given, what is then held, its check, its default.
    layers: Field[int, int] = Field(check.count)
    heads: Field[int, int] = Field(check.count)
    width: Field[int, int] = Field(check.count)
    _: KW_ONLY
    head_width: Field[int | None, int] = Field(check.derived(check.count), None)
    kv_heads: Field[int | None, int] = Field(check.derived(check.count), None)
    mlp_ratio: Field[float, float] = Field(check.scale, 4.0)
    activation: Field[str, str] = Field(check.one_of(ACTIVATIONS), "gelu")
    gated: Field[bool, bool] = Field(flag, False)
    mlp_as: Field[MLPForm, MLPForm] = Field(check.one_of(MLP_FORMS), "mlp")
    removed_heads: Field[Iterable[tuple[int, int]], tuple[tuple[int, int], ...]] = Field(
        check.pairs, ()
    )
    norm: Field[NormKind, NormKind] = Field(check.one_of(NORMS), "layer")
    norm_place: Field[NormPlace, NormPlace] = Field(check.one_of(NORM_PLACES), "pre")
    norm_eps: Field[float, float] = Field(check.scale, 1e-5)
    parallel: Field[bool, bool] = Field(flag, False)
    skip: Field[float, float] = Field(check.scale, True)
    attention_skip: Field[float | None, float | None] = Field(check.optional(check.scale), None)
    mlp_skip: Field[float | None, float | None] = Field(check.optional(check.scale), None)
    mask: Field[AnyMask, Mask] = Field(check.one_mask, "full")
    layer_masks: Field[Sequence[AnyMask] | None, tuple[Mask, ...] | None] = Field(
        check.optional(check.mask_of_each_layer), None
    )
    bias: Field[bool, bool] = Field(flag, True)
    shared_layers: Field[bool, bool] = Field(flag, False)
    centered: Field[bool, bool] = Field(flag, False)
    scores: Field[AnyScores, AnyScores] = Field(check.score_kind, "dot")
    score_scale: Field[float | None, float] = Field(check.derived(check.scale), None)
    init: Field[str | float | Init, Init] = Field(check.initialisation, "bert")
    embedding_scale: Field[float | None, float] = Field(check.derived(check.positive), None)
    undescribed: Field[Iterable[str], tuple[str, ...]] = Field(check.phrases, ())

    def __post_init__(self) -> None:
        """Checks and derived values that involve several fields."""
        self._settle_heads()
        self._settle_mlp()
        self._settle_skips()
        self._settle_masks()
        self._settle_init()

    @classmethod
    @checked
    def pure_attention(cls, layers: int, heads: int, width: int, **more: Any) -> Self:
        """Attention only, the network of the theorems: no MLPs, norms or skips.

        >>> from rankscope import Spec
        >>> Spec.pure_attention(6, 1, 64) == Spec(6, 1, 64, mlp_ratio=0, norm="none", skip=False)
        True

        ``more`` are any other fields, such as ``mask`` or ``init``.
        """
        twice = {"mlp_ratio", "norm", "skip", "attention_skip", "mlp_skip"} & more.keys()
        if twice:
            raise SpecError(
                f"pure attention has no MLP, norm or skip, but {min(twice)}"
                f"{short(more[min(twice)])} was given; write Spec({layers}, {heads}, {width}, ...) "
                "instead."
            )
        return cls(layers, heads, width, mlp_ratio=0.0, norm="none", skip=False, **more)

    @property
    def skips(self) -> tuple[float, float]:
        """The scales of the attention skip and the MLP skip; 0 means none."""
        return (self.skip if self.attention_skip is None else self.attention_skip, self.skip)

    @property
    def sums(self) -> int:
        """The number of branches added to the stream in sequence."""
        return self.layers * (2 if self.mlp_width and not self.parallel else 1)

    @property
    def initialised(self) -> str:
        """How weights and embeddings are initialised, in words."""
        return f"{self.init}, embeddings of scale {numerals.short(self.embedding_scale)}"

    @property
    def masks(self) -> tuple[Mask, ...]:
        """The mask of each layer."""
        return (self.mask,) * self.layers if self.layer_masks is None else self.layer_masks

    @property
    def mlp_width(self) -> int:
        """The number of hidden units of the MLP; 0 if there is none."""
        return round(self.mlp_ratio * self.width)

    def check_drawable(self) -> None:
        """Raise unless random networks can be drawn from the spec."""
        if self.undescribed:
            raise UnsupportedModelError(
                "no random network can be drawn from the spec of this loaded model, which does not "
                f"describe: {', '.join(self.undescribed)}."
            )

    @checked
    def build_scores(self, dtype: torch.dtype, device: torch.device | None = None) -> Scores:
        """The module of the score, with weights in the dtype of the network."""
        if self.scores == "dot":
            return Scores()
        return self.scores.build(self.heads, self.head_width).to(device, dtype)

    @checked
    def digest(self, *, seed: int | None = None) -> str:
        """Twelve hex digits that identify this spec, a seed and this version of the code."""
        content = {f.name: repr(getattr(self, f.name)) for f in fields(self)}
        content |= {"seed": str(seed), "version": __version__}
        return fingerprint(content)

    def describe(self) -> str:
        """The whole spec in words, on one line.

        >>> from rankscope import Spec
        >>> print(Spec(2, 2, 8, norm_place="post", mask="causal").describe())
        2 layers, width 8, 2 heads of width 4, causal mask, layer norm after each sum, skips, \
MLPs of 32 gelu units, biases, weights of standard deviation 0.02, embeddings of scale 1
        """
        return ", ".join(_in_words(self))

    def __repr__(self) -> str:
        """The call that makes it: the shape, and fields that differ from the defaults."""
        plain = Spec(self.layers, self.heads, self.width, head_width=self.head_width)
        named = [f.name for f in fields(self)[3:]]
        changed = {n: getattr(self, n) for n in named if getattr(self, n) != getattr(plain, n)}
        changed.pop("embedding_scale", None)  # that of the plain spec is about another design
        if self.embedding_scale != self._usual_embedding_scale:
            changed["embedding_scale"] = self.embedding_scale
        if self.head_width * self.heads != self.width:
            changed = {"head_width": self.head_width, **changed}
        shape = f"{self.layers}, {self.heads}, {self.width}"
        return f"Spec({', '.join([shape, *(f'{n}={_short(v)}' for n, v in changed.items())])})"

    def _repr_html_(self) -> str:
        from rankscope.show.display import card, paragraph

        return card("Spec", paragraph(self.describe()))

    def _settle(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _settle_heads(self) -> None:
        if self.head_width is None:
            if self.width % self.heads:
                raise SpecError(
                    f"width={self.width} is not divisible by heads={self.heads}; choose a "
                    "multiple, or set head_width."
                )
            self._settle(head_width=self.width // self.heads)
        if self.kv_heads is None:
            self._settle(kv_heads=self.heads)
        if self.heads % self.kv_heads:
            raise SpecError(f"heads={self.heads} is not divisible by kv_heads={self.kv_heads}.")
        if self.score_scale is None:  # T5 has small queries instead
            plain = isinstance(self.init, str) and self.init == "t5"
            self._settle(score_scale=1.0 if plain else 1 / math.sqrt(self.head_width))
        for layer, head in self.removed_heads:
            if not (0 <= layer < self.layers and 0 <= head < self.heads):
                raise SpecError(
                    f"removed_heads: head {head} of layer {layer} does not exist; "
                    f"layers are 0 to {self.layers - 1}, heads 0 to {self.heads - 1}."
                )

    def _settle_mlp(self) -> None:
        ratio, width = self.mlp_ratio, self.width
        if not ratio * width < 2**31:
            raise SpecError(f"mlp_ratio={ratio} of width {width} is too large to build.")
        if ratio and round(ratio * width) < 1:
            raise SpecError(f"mlp_ratio={ratio} of width {width} gives no hidden units.")
        if self.mlp_as == "identity" and self.parallel and ratio:
            raise SpecError(
                "mlp_as='identity' in a parallel block would be a second skip; remove the MLP "
                "instead: without('mlp')."
            )
        self._settle(mlp_as=self.mlp_as if ratio else "mlp")

    def _settle_skips(self) -> None:
        """``attention_skip`` is None unless the two skips differ; ``skip`` is then the MLP's."""
        attention = self.skip if self.attention_skip is None else self.attention_skip
        mlp = self.skip if self.mlp_skip is None else self.mlp_skip
        if not self.mlp_ratio:
            mlp = attention
        if self.parallel and attention != mlp:
            raise SpecError(
                f"attention_skip={attention:g} and mlp_skip={mlp:g} differ, but a parallel block "
                "has one skip around both parts; set skip alone."
            )
        differ = None if attention == mlp else attention
        self._settle(skip=mlp, attention_skip=differ, mlp_skip=None)

    def _settle_init(self) -> None:
        """Resolve the name of a library, and set the default embedding scale."""
        if isinstance(self.init, str):
            library: str = self.init
            named = check.library_init(library, sums=self.sums, head_width=self.head_width)
            self._settle(init=named)
            if library == "gpt2" and self.embedding_scale is None:  # words and positions
                self._settle(embedding_scale=math.sqrt(2) * named.scale)
        if self.embedding_scale is None:
            self._settle(embedding_scale=self._usual_embedding_scale)

    @property
    def _usual_embedding_scale(self) -> float:
        """The usual embedding scale of designs like this.

        If no norm follows the sums, embeddings are drawn like other weights; otherwise, and in
        designs of theory, they have unit variance, as after BERT's LayerNorm.
        """
        bounded = self.norm == "none" or self.norm_place == "post"
        drawn = self.init.kind == "normal" and not bounded
        return (self.init.scale or 1.0) if drawn else 1.0

    def _settle_masks(self) -> None:
        """One mask for all layers, or the first and, if they differ, one per layer."""
        masks = self.layer_masks
        if masks is None:
            return
        if len(masks) != self.layers:
            raise SpecError(
                f"layer_masks has {len(masks)} masks for {self.layers} layers; expected one each."
            )
        self._settle(mask=masks[0], layer_masks=None if len(set(masks)) == 1 else masks)


def _short(value: object) -> str:
    """A value as it is written; of many masks or heads only the first."""
    if not isinstance(value, tuple):
        return repr(value)
    few = reprlib.Repr()
    few.maxtuple, few.maxother = 8, 60
    return few.repr(value)


def _in_words(spec: Spec) -> Iterator[str]:
    """One phrase for each thing a spec says."""
    shared = " that share their weights" if spec.shared_layers else ""
    yield f"{_counted(spec.layers, 'layer')}{shared}"
    yield f"width {spec.width}"
    yield from _attention_words(spec)
    yield from _norm_words(spec)
    yield _skip_words(spec)
    yield _mlp_words(spec)
    yield from spec.undescribed
    yield "biases" if spec.bias else "no biases"
    yield spec.initialised


def _attention_words(spec: Spec) -> Iterator[str]:
    groups = "" if spec.kv_heads == spec.heads else f" ({spec.kv_heads} for keys and values)"
    yield f"{_counted(spec.heads, 'head')} of width {spec.head_width}{groups}"
    if spec.removed_heads:
        silent = ", ".join(f"{head} of layer {layer}" for layer, head in spec.removed_heads)
        yield f"silent heads {silent}"
    if spec.centered:
        yield "centred attention"
    if spec.scores != "dot":
        yield f"{spec.scores} scores"
    if spec.score_scale != 1 / math.sqrt(spec.head_width):
        yield f"logits times {spec.score_scale:g}"
    if spec.layer_masks is None:
        yield f"{spec.mask} mask"
    else:
        runs = ((mask, len(list(same))) for mask, same in groupby(spec.layer_masks))
        phrases = (f"{mask} for {_counted(layers, 'layer')}" for mask, layers in runs)
        yield f"masks {'; '.join(phrases)}"


def _norm_words(spec: Spec) -> Iterator[str]:
    if spec.norm == "none":
        yield "no norm"
        return
    yield f"{spec.norm} norm {NORM_PLACES[spec.norm_place]}"
    if spec.norm_eps != 1e-5:
        yield f"eps {spec.norm_eps:g}"


def _skip_words(spec: Spec) -> str:
    attention, mlp = spec.skips
    if attention != mlp:
        return f"skips times {attention:g} around attention and {mlp:g} around MLPs"
    if attention == 1:
        return "skips"
    return f"skips times {attention:g}" if attention else "no skips"


def _mlp_words(spec: Spec) -> str:
    if not spec.mlp_width:
        return "no MLPs"
    beside = " beside attention" if spec.parallel else ""
    if spec.mlp_as != "mlp":
        left = {"identity": "the identity", "activation": f"{spec.activation} alone"}[spec.mlp_as]
        return f"{left} in place of MLPs of {spec.mlp_width} units{beside}"
    gated = "gated " if spec.gated else ""
    return f"{gated}MLPs of {spec.mlp_width} {spec.activation} units{beside}"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
