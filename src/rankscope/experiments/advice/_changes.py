"""Changes of a design, and what each of them costs.

To add an alternative, write one generator that yields ``Change``s of a spec, and enter it in
``ALTERNATIVES``; changes that have no effect are skipped, and costs are computed.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import torch

from rankscope.core import network
from rankscope.core.masks import Causal, Full, causal_window, window
from rankscope.core.network import Spec
from rankscope.numerals import plural, short

_NOTICED: Final = 0.01
"""Share of all parameters below which a difference does not count."""
_NORM_PLACES: Final[dict[network.NormPlace, str]] = {
    "pre": "norms before each part",
    "post": "norms after each sum",
    "both": "norms before and after each part",
    "output": "norms after each part",
}
_INITS: Final = {
    "lecun": "LeCun weights",
    "xavier": "Xavier weights",
    "bert": "weights of deviation 0.02",
    "orthogonal": "orthogonal values and outputs",
}


@dataclass(frozen=True)
class Change:
    """A change in a few words, the resulting spec, and drawbacks that cannot be counted.

    ``kind`` is the alternative it comes from, such as "skips".
    """

    words: str
    spec: Spec
    drawback: str = ""
    kind: str = ""


def skips(spec: Spec, _tokens: int) -> Iterator[Change]:
    """Skips where one is missing, then skips of another scale.

    A skip here multiplies the stream, ``αx + f(x)``. Under a norm after the sum only the ratio
    matters, so that ``α = √(2L)`` is a branch scaled by ``1/√(2L)`` (Noci et al. 2022), exactly,
    and ``α = (2L)^¼`` is that of DeepNet (Wang et al. 2022); 2L are the sums of L layers. Elsewhere
    a scale is taken to the power of the depth, so that only a factor of ``√2`` is tried; there
    smaller weights stand for a scaled branch (see ``weights``).
    """

    def with_skip(alpha: float) -> Spec:
        return replace(spec, skip=alpha, attention_skip=None, mlp_skip=None)

    if 0.0 in spec.skips:
        drawback = "one more sum per part; the input stays in the residual stream"
        yield Change("skips added", with_skip(1.0), drawback)
        return
    if spec.norm != "none" and spec.norm_place == "post":
        sums = spec.sums
        for alpha, name in ((math.sqrt(sums), f"1/√{sums}"), (sums**0.25, f"1/{sums}^¼")):
            words = f"skip × {short(alpha)} (branches × {name})"
            yield Change(
                words, with_skip(alpha), f"each branch has {name} of the weight of the skip"
            )
    for alpha in (math.sqrt(2), math.sqrt(0.5)):
        more, less = ("skip", "branch") if alpha > 1 else ("branch", "skip")
        yield Change(
            f"skip × {short(alpha)}",
            replace(spec, attention_skip=spec.skips[0] * alpha, mlp_skip=spec.skips[1] * alpha),
            f"more {more}, less {less} in every sum",
        )


def weights(spec: Spec, _tokens: int) -> Iterator[Change]:
    """Smaller and larger weights, and the usual rules.

    A branch is a product of two matrices that scale it (values and outputs, or the MLP's two), so
    that weights times ``(2L)^−¼`` make branches of about ``1/√(2L)``; logits shrink as much.
    """
    sums = spec.sums
    factor = sums**-0.25
    scaled = [(0.5, "weights × 0.5", "a quarter"), (2.0, "weights × 2", "four times")]
    if not spec.init.scales.get("output", 1.0) < 1.0:  # GPT-2 has it already
        words = f"weights × {short(factor)} (branches × 1/√{sums})"
        scaled.append((factor, words, f"1/√{sums}"))
    for by, words, much in scaled:
        drawback = f"branches are about {much} as large at initialisation"
        yield Change(words, replace(spec, init=spec.init.times(by)), drawback)
    for name, words in _INITS.items():
        yield Change(words, replace(spec, init=name))


def embeddings(spec: Spec, _tokens: int) -> Iterator[Change]:
    """Embeddings of unit variance, as √width makes those of Gemma, and ten times larger ones.

    Under norms before each part, what the first layers add is large beside small embeddings.
    """
    if spec.norm == "none" or spec.norm_place == "post":  # a norm after the first sum undoes it
        return
    for scale in (1.0, 10 * spec.embedding_scale):
        if scale > spec.embedding_scale:
            drawback = "branches are smaller relative to the embeddings at initialisation"
            words = f"embeddings of scale {short(scale)} instead of {short(spec.embedding_scale)}"
            yield Change(words, replace(spec, embedding_scale=scale), drawback)


def norms(spec: Spec, _tokens: int) -> Iterator[Change]:
    """Every placement of the norm (LayerNorm if there is none), and no norm."""
    kind = "layer" if spec.norm == "none" else spec.norm
    drawback = "one more norm per part" if spec.norm == "none" else ""
    for placement, words in _NORM_PLACES.items():
        yield Change(words, replace(spec, norm=kind, norm_place=placement), drawback)
    if spec.norm != "none":
        bare = replace(spec, norm="none", norm_place=spec.norm_place)
        yield Change("no norms", bare, "nothing limits the norm of the tokens")


def masks(spec: Spec, tokens: int) -> Iterator[Change]:
    """A causal mask under the full one, and windows under either; other masks stay."""
    if spec.layer_masks is not None or not isinstance(spec.mask, Full | Causal):
        return
    causal = isinstance(spec.mask, Causal)
    if not causal:
        yield Change("causal mask", replace(spec, mask="causal"), "no token attends to later ones")
    for reach in (tokens // 4, tokens // 16):  # to either side it looks to
        if reach:
            mask = causal_window(reach) if causal else window(reach)
            yield Change(
                f"window of {reach}",
                replace(spec, mask=mask),
                "distant tokens interact only over several layers",
            )


def centering(spec: Spec, _tokens: int) -> Iterator[Change]:
    """Attention minus its mean, if there is a skip connection that carries the mean."""
    if spec.skips[0]:
        drawback = "the mean of the values no longer passes through attention"
        yield Change("centred attention", replace(spec, centered=True), drawback)


def positions(spec: Spec, _tokens: int) -> Iterator[Change]:
    """Other positional scores instead of the current ones."""
    kinds: dict[str, network.ScoreKind] = {
        "ALiBi": network.ALiBi(),
        "relative biases": network.RelativeBias(),
    }
    if spec.head_width % 2 == 0:
        kinds = {"rotary positions": network.Rotary(), **kinds}
    for words, kind in kinds.items():
        if type(kind) is not type(spec.scores):
            drawback = "" if spec.scores == "dot" else f"in place of {spec.scores}"
            yield Change(words, replace(spec, scores=kind), drawback)


def heads(spec: Spec, _tokens: int) -> Iterator[Change]:
    """Half and twice as many heads at the same total width, keys and values likewise."""
    own_slopes = isinstance(spec.scores, network.ALiBi) and spec.scores.slopes is not None
    if spec.removed_heads or isinstance(spec.scores, network.Lent) or own_slopes:
        return  # a model's score, or slopes of one's own, are for as many heads as there are
    usual = spec.score_scale == 1 / math.sqrt(spec.head_width)
    for more, fewer in ((1, 2), (2, 1)):
        new, rest = divmod(spec.heads * more, fewer)
        kv, kv_rest = divmod(spec.kv_heads * more, fewer)
        width, width_rest = divmod(spec.head_width * fewer, more)
        if rest or kv_rest or width_rest or (isinstance(spec.scores, network.Rotary) and width % 2):
            continue
        scale = None if usual else spec.score_scale
        yield Change(
            f"{plural(new, 'head')} of width {width}",
            replace(spec, heads=new, kv_heads=kv, head_width=width, score_scale=scale),
            f"{'fewer, finer' if new < spec.heads else 'more, coarser'} patterns of attention",
        )


def mlps(spec: Spec, _tokens: int) -> Iterator[Change]:
    """MLPs of the usual ratio where there are none, or none."""
    if not spec.mlp_width:
        yield Change("MLPs added", replace(spec, mlp_ratio=4.0))
        return
    bare = replace(spec, mlp_ratio=0.0, mlp_as="mlp")
    yield Change("MLPs removed", bare, "no nonlinear map of single tokens")


def parallel_blocks(spec: Spec, _tokens: int) -> Iterator[Change]:
    """Attention and MLP side by side instead of one after the other, or the other way round."""
    if not spec.mlp_width or spec.mlp_as != "mlp":
        return
    if spec.parallel:
        after = replace(spec, parallel=False)
        yield Change("MLP after attention", after, "two sequential steps per layer")
    elif spec.skips[0] == spec.skips[1]:
        beside = replace(spec, parallel=True)
        yield Change(
            "MLP parallel to attention",
            beside,
            "an MLP does not read the attention of its own layer",
        )


ALTERNATIVES: Final[Sequence[Callable[[Spec, int], Iterator[Change]]]] = (
    skips, weights, embeddings, norms, masks, centering, positions, heads, mlps, parallel_blocks,
)  # fmt: skip


def changes(spec: Spec, tokens: int) -> list[Change]:
    """All distinct alternatives to a design for a number of tokens.

    >>> from rankscope import Spec
    >>> [each.words for each in changes(Spec.pure_attention(2, 1, 8), 4)][:2]
    ['skips added', 'weights × 0.5']
    """
    by_spec: dict[Spec, Change] = {}
    for alternative in ALTERNATIVES:
        for change in alternative(spec, tokens):
            if change.spec != spec:
                by_spec.setdefault(change.spec, replace(change, kind=alternative.__name__))
    return list(by_spec.values())


@dataclass(frozen=True)
class Price:
    """The ratio of parameters, and the share of token pairs that may attend."""

    parameters: float
    context: float
    context_before: float
    only_initial: bool
    """Whether only the initialisation changes."""
    branches: float = 1.0
    """The size of the attention branch at initialisation, relative to the original."""

    @classmethod
    def of(cls, before: Spec, after: Spec, tokens: int) -> "Price":
        """The price of changing one design to another, for a number of tokens."""
        drawn = ("init", "embedding_scale")
        names = [field.name for field in fields(before) if field.name not in drawn]
        return cls(
            parameter_count(after) / parameter_count(before) - 1,
            context_share(after, tokens),
            context_share(before, tokens),
            all(getattr(before, name) == getattr(after, name) for name in names),
            _branch(after) / _branch(before) if _branch(before) else 1.0,
        )

    @property
    def level(self) -> int:
        """0 for another start, 1 for another function, 2 for other parameters, 3 for context lost.

        Between two changes that help equally the one of the lower level comes first.
        """
        if self.context < self.context_before:
            return 3
        if abs(self.parameters) > _NOTICED:
            return 2
        return 0 if self.only_initial else 1

    def in_words(self, drawback: str = "") -> str:
        """All costs in words, including the drawback."""
        parts = []
        if self.parameters:
            more = "more" if self.parameters > 0 else "fewer"
            parts.append(f"{short(100 * abs(self.parameters), digits=2)} % {more} parameters")
        if self.context != self.context_before:
            seen, all_ = (
                short(100 * share, digits=2) for share in (self.context, self.context_before)
            )
            parts.append(f"a token attends to {seen} % of the tokens instead of {all_} %")
        if drawback:
            parts.append(drawback)
        elif self.only_initial and abs(math.log(self.branches or 1.0)) > _NOTICED:
            parts.append(f"branches start {short(self.branches, digits=2)} times as large")
        return "; ".join(parts) or "none of those counted here"


def _branch(spec: Spec) -> float:
    """The approximate gain of values and outputs together."""
    inner, init = spec.heads * spec.head_width, spec.init
    into, out = (
        init.deviation("value", spec.width, inner),
        init.deviation("output", inner, spec.width),
    )
    return into * out * math.sqrt(inner * spec.width)


def parameter_count(spec: Spec) -> int:
    """The number of parameters of ``Network.random(spec)``, without creating it."""
    width, queries = spec.width, spec.heads * spec.head_width
    keys = spec.kv_heads * spec.head_width
    block = 2 * width * (queries + keys) + spec.bias * (queries + 2 * keys + width)
    if spec.mlp_width:
        into = 2 if spec.gated else 1
        block += (into + 1) * width * spec.mlp_width
        block += spec.bias * (into * spec.mlp_width + width)
    count = (2 if spec.mlp_width else 1) * (2 if spec.norm_place == "both" else 1)
    if spec.parallel and spec.norm_place == "post":  # after the one sum
        count = 1
    modules = [network.build_norm(spec.norm, width, eps=spec.norm_eps, bias=spec.bias)] * count
    described = isinstance(spec.scores, network.Described | network.Lent)
    if not described:  # positions of a model are no weights
        modules.append(spec.build_scores(torch.float32))
    block += sum(weight.numel() for module in modules for weight in module.parameters())
    return block * (1 if spec.shared_layers else spec.layers)


def context_share(spec: Spec, tokens: int) -> float:
    """The share of token pairs that the masks allow, over all layers."""
    by_mask = {mask: float(mask.matrix(tokens).double().mean()) for mask in set(spec.masks)}
    return sum(by_mask[mask] for mask in spec.masks) / spec.layers
