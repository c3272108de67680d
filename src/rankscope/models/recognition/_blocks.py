"""Blocks of any architecture, recognised part by part: roles from names, the rest by trial.

Names say which projection makes queries, keys and values; the order of calls says which norm
stands where; and each open question (which scale, which rotary layout, a gain w or 1 + w, a norm
before or after the sum) is settled by trial (``_observation``). Nothing is assumed that the numbers
do not confirm; if no reading does, the error names the layer and the part.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Self

from torch import Tensor, nn

from rankscope.core import network
from rankscope.core.masks import Mask
from rankscope.core.network import ACTIVATIONS, MLP, Attention, Block, Projection, Spec, View
from rankscope.models.recognition._attention import (
    ROLES,
    AttentionParts,
    DescribedScores,
    ReadAttention,
    read_attention,
)
from rankscope.models.recognition._experts import expert_mlps, find_experts
from rankscope.models.recognition._observation import (
    TOLERANCES,
    Habits,
    Observed,
    PathCall,
    Reading,
)
from rankscope.models.recognition._projections import Slots, plain, scaled
from rankscope.numerals import short

ACTIVATION_NAMES = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}
"""Activations by the names that configurations of transformers give them."""
_CROSS = re.compile(r"cross|encoder_attn|encdec|encoder_decoder", re.IGNORECASE)
_ATTENTION = re.compile(r"att", re.IGNORECASE)
_NORM = re.compile(r"norm|(^|\.)ln_?\d?$", re.IGNORECASE)
_LAYER_SCALE = re.compile(r"lambda_?[12]?$|layer_scale|(^|\.)ls\d|gamma_?[12]$")
_EPSILONS = ("variance_epsilon", "eps", "epsilon", "norm_eps", "layer_norm_eps")
_MULTIPLIERS = ("residual_multiplier", "residual_scale", "scaling_factor", "res_scale")


@dataclass(frozen=True)
class RecognisedBlock:
    """One block in our parts, and the fields of the spec that its structure determines."""

    attention: Attention
    mlp: MLP | None
    norms: Mapping[str, nn.Module]
    mask: Mask
    fields: Mapping[str, Any]
    words: str
    """The score, in words; empty for plain products."""
    scaled: bool = False
    """Whether what attention and MLP add to the stream is multiplied by factors."""

    def build(self, width: int) -> Block:
        """The block by itself."""
        spec = Spec(1, 1, width, mlp_ratio=0.0 if self.mlp is None else 1.0, **self.fields)
        return Block(spec, attention=self.attention, mlp=self.mlp, norms=self.norms)

    def output(self, observed: Observed) -> Tensor:
        """What the block makes of the recorded input."""
        out: Tensor = self.build(observed.x.shape[-1])(observed.x, observed.visibility(self.mask))
        return out


def recognise(
    observed: Observed,
    body: nn.Module,
    config: Any,
    habits: Habits,
    *,
    roles: Mapping[str, str],
    scores: DescribedScores | None,
) -> RecognisedBlock:
    """Take one block apart, settling every open question on its recorded calls.

    ``roles`` and ``scores`` are what a family says about it.
    """
    calls = _Calls.of(observed)
    norm = partial(read_norm, observed=observed, config=config, habits=habits)
    named = {role: re.compile(rf"(^|\.){re.escape(name)}$") for role, name in roles.items()}
    heads = {call.path: norm(call) for call in calls.norms["heads"]}
    by_role = {**ROLES, **named}
    parts = AttentionParts(observed, calls.attention, heads, body, config, by_role, scores)
    attention = read_attention(parts, habits)
    mlp = _read_mlp(calls, config, habits)
    norms = {
        name: [norm(call) for call in calls.norms[name]] for name in ("before", "between", "after")
    }
    made = _assemble(observed, attention, mlp, norms, config, habits)
    _refuse_unused(made, observed)
    return made


def _refuse_unused(made: RecognisedBlock, observed: Observed) -> None:
    """Refuse a block with parameters that the network lacks: on other inputs they may matter.

    Modules that did not run (attention to images, when there are none) are for other inputs.
    """
    parts = [part for part in (made.attention, made.mlp, *made.norms.values()) if part is not None]
    used = {id(parameter) for part in parts for parameter in part.parameters()}
    ran = {observed.block, *(call.module for call in observed.calls)}
    for path, parameter in observed.block.named_parameters():
        owner = observed.block.get_submodule(path.rpartition(".")[0])
        if owner in ran and id(parameter) not in used:
            raise observed.refusal("block", f"its parameter {path} has no known role")


def confirmed(made: RecognisedBlock, observed: Observed) -> RecognisedBlock:
    """A block taken apart by hand, once it is seen to give the recorded output."""
    error = observed.error(made.output(observed), observed.output)
    if not error <= TOLERANCES[observed.output.dtype]:
        raise observed.refusal("block", f"its output is off by {short(error)}")
    return made


@dataclass(frozen=True)
class _Calls:
    """The calls of a block by what they are."""

    observed: Observed
    attention: list[PathCall]
    """Projections of attention, in their order."""
    mlp: list[PathCall]
    """Projections of the MLP; the call of the whole, if it is a mixture of experts."""
    norms: dict[str, list[PathCall]]
    """Norms before attention, of its heads, between the parts and after the MLP."""

    @classmethod
    def of(cls, observed: Observed) -> Self:
        tokens = observed.x.shape[:2].numel()  # other inputs are embeddings of positions, say
        linear = [
            call
            for call in observed.calls
            if _is_linear(call.module) and call.x.shape[:-1].numel() == tokens
        ]
        crossing = [call.path for call in linear if _CROSS.search(call.path)]
        if crossing:
            raise observed.refusal("attention", f"it attends to another sequence ({crossing[0]})")
        attention = [call for call in linear if _ATTENTION.search(call.path)]
        if len(attention) < 2:
            why = "no module that is named as attention (attn) has its projections"
            raise observed.refusal("attention", why)
        mlp = [call for call in linear if not _ATTENTION.search(call.path)]
        position = {id(call): number for number, call in enumerate(observed.calls)}
        first, last = position[id(attention[0])], position[id(attention[-1])]
        begin, end = (position[id(mlp[0])], position[id(mlp[-1])]) if mlp else (last, last)
        mixture = _mixture(observed)
        if mixture is not None:
            mlp, end = [mixture], position[id(mixture)]
            inside = (n for n, c in enumerate(observed.calls) if c.path.startswith(mixture.path))
            begin = next(inside)
        norms: dict[str, list[PathCall]] = {
            name: [] for name in ("before", "heads", "between", "after")
        }
        for call in filter(_is_norm, observed.calls):
            at = position[id(call)]
            if begin < at < end:
                raise observed.refusal("MLP", f"it has a norm inside ({call.path})")
            name = "before" if at < first else "heads" if at < last else "between"
            norms["after" if mlp and at > end else name].append(call)
        return cls(observed, attention, mlp, norms)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _is_norm(call: PathCall) -> bool:
    named = _NORM.search(type(call.module).__name__) or _NORM.search(call.path)
    leaf = not any(True for _ in call.module.children())
    return bool(named) and leaf and call.x.shape == call.output.shape


def _mixture(observed: Observed) -> PathCall | None:
    """The call of the module that routes tokens to experts; None if there is none."""
    for call in observed.calls:
        direct = any(find_experts(child) is child for child in call.module.children())
        if direct and call.output.shape == observed.x.shape:
            return call
    return None


def read_norm(call: PathCall, *, observed: Observed, config: Any, habits: Habits) -> nn.Module:
    """A norm of ours on the parameters of the original, with the same output on the probe."""
    module, width = call.module, call.x.shape[-1]
    if type(module) in (nn.LayerNorm, nn.RMSNorm, nn.Identity):
        return module
    stored = dict(module.named_parameters(recurse=False))
    gain = next((stored[n] for n in ("weight", "gain", "scale", "gamma") if n in stored), None)
    bias = next((stored[n] for n in ("bias", "beta") if n in stored), None)
    if gain is not None and gain.shape != (width,):
        raise observed.refusal("norm", f"the gain of {call.path} has shape {tuple(gain.shape)}")
    epsilons = [getattr(module, name, None) for name in _EPSILONS]
    epsilons += [getattr(config, f"{kind}_norm_eps", None) for kind in ("rms", "layer")]
    known = dict.fromkeys(float(eps) for eps in [*epsilons, 1e-6, 1e-5, 1e-12] if eps is not None)
    readings = [
        Reading(
            f"{'LayerNorm' if centers else 'RMSNorm'}, eps {eps:g}{', 1 + w' * offset}",
            partial(_make_norm, width, eps, gain, bias, centers=centers, offset=offset),
        )
        for eps, offset, centers in product(known, (False, True), (False, True))
    ]
    question = f"norm {call.path} ({type(module).__name__})"
    return habits.settle(question, readings, lambda norm: norm(call.x), call.output, observed)


def _make_norm(
    width: int,
    eps: float,
    gain: nn.Parameter | None,
    bias: nn.Parameter | None,
    *,
    centers: bool,
    offset: bool,
) -> nn.Module:
    if offset and gain is not None:
        return network.OffsetNorm(centers=centers, eps=eps, offset=gain, bias=bias)
    affine = gain is not None
    norm: nn.LayerNorm | nn.RMSNorm = (
        nn.LayerNorm(width, eps=eps, elementwise_affine=affine, bias=bias is not None)
        if centers
        else nn.RMSNorm(width, eps=eps, elementwise_affine=affine)
    )
    if gain is not None:
        norm.weight = gain
    if bias is not None and isinstance(norm, nn.LayerNorm):
        norm.bias = bias
    return norm


def _read_mlp(calls: _Calls, config: Any, habits: Habits) -> MLP | None:
    """The MLP, plain, gated or a mixture of experts; None if there is none."""
    observed = calls.observed
    if not calls.mlp:
        return None
    activations = _activations(config)
    mixture = calls.mlp[0]
    experts = find_experts(mixture.module)
    if experts is not None:
        readings = [
            Reading(label, partial(_same, mlp))
            for label, mlp in expert_mlps(mixture.module, experts, activations)
        ]
        return habits.settle(
            "mixture of experts", readings, lambda m: m(mixture.x), mixture.output, observed
        )
    *ins, down = calls.mlp
    if len(ins) not in (1, 2):
        raise observed.refusal("MLP", f"it has {len(calls.mlp)} projections")
    readings = [
        Reading(
            f"{label}, {phi}",
            partial(MLP, up=up, down=plain(down.module), gate=gate, activation=phi),
        )
        for phi in activations
        for label, up, gate in _ups(ins, down)
    ]
    return habits.settle("MLP", readings, lambda mlp: mlp(ins[0].x), down.output, observed)


def _same(mlp: MLP) -> MLP:
    return mlp


def _ups(
    ins: Sequence[PathCall], down: PathCall
) -> Iterator[tuple[str, Projection, Projection | None]]:
    """Which projection goes up and which is the gate."""
    if len(ins) == 2:
        first, second = (plain(call.module) for call in ins)
        yield "gate first", second, first
        yield "gate second", first, second
    elif ins[0].output.shape[-1] == 2 * down.x.shape[-1]:
        turned = not isinstance(ins[0].module, nn.Linear)
        halves = [View(ins[0].module, Slots(1, 2, k, k + 1, turned)) for k in (0, 1)]
        yield "gate, then up", halves[1], halves[0]
        yield "up, then gate", halves[0], halves[1]
    else:
        yield "plain", plain(ins[0].module), None


def _activations(config: Any) -> list[str]:
    """All activations, those that the configuration names first."""
    named = [
        ACTIVATION_NAMES[value]
        for name, value in sorted(vars(config).items())
        if "act" in name and isinstance(value, str) and value in ACTIVATION_NAMES
    ]
    return list(dict.fromkeys([*named, *ACTIVATIONS]))


Factor = float | nn.Parameter
"""What a branch is multiplied by: a number, or a number for each feature."""


def _assemble(
    observed: Observed,
    attention: ReadAttention,
    mlp: MLP | None,
    norms: Mapping[str, Sequence[nn.Module]],
    config: Any,
    habits: Habits,
) -> RecognisedBlock:
    """Put the parts together: where norms stand, what is parallel, how branches are scaled."""

    def build(
        place: str, named: Mapping[str, nn.Module], parallel: bool, factors: tuple[Factor, Factor]
    ) -> RecognisedBlock:
        first, second = factors
        added = attention.attention
        added = added.replaced(output=scaled(added.output, first))
        unit = None if mlp is None else mlp.replaced(down=scaled(mlp.down, second))
        return RecognisedBlock(
            added,
            unit,
            named,
            attention.mask,
            {"norm_place": place, "parallel": parallel},
            attention.words,
            any(isinstance(factor, Tensor) or factor != 1.0 for factor in factors),
        )

    readings = [
        Reading(
            f"{place}{', parallel' * parallel}{f', factors {number}' * bool(number)}",
            partial(build, place, named, parallel, factors),
        )
        for place, named, parallel in _placements(norms, has_mlp=mlp is not None)
        for number, factors in enumerate(_factors(observed.block, config))
    ]
    return habits.settle(
        "order of norms and sums",
        readings,
        lambda made: made.output(observed),
        observed.output,
        observed,
    )


def _factors(block: nn.Module, config: Any) -> list[tuple[Factor, Factor]]:
    """Factors that the branches of attention and MLP may have."""
    by_feature = [
        parameter
        for path, parameter in block.named_parameters()
        if _LAYER_SCALE.search(path) and parameter.ndim == 1
    ]
    if len(by_feature) == 2:
        return [(by_feature[0], by_feature[1])]
    owners: list[Any] = [block, *block.children(), config]
    stated = [getattr(owner, name, None) for owner in owners for name in _MULTIPLIERS]
    numbers = [float(value) for value in stated if isinstance(value, int | float) and value]
    scales = dict.fromkeys([1.0, *numbers, *(1 / number for number in numbers)])
    return [(scale, scale) for scale in scales]


Placement = tuple[str, Mapping[str, nn.Module], bool]
"""The name of a norm placement, the norms by their place, and whether the parts are parallel."""


def _placements(norms: Mapping[str, Sequence[nn.Module]], *, has_mlp: bool) -> list[Placement]:
    """Placements with as many norms before attention, between the parts and after the MLP."""
    before, between, after = (norms[name] for name in ("before", "between", "after"))
    make = _PLACEMENTS.get((len(before), len(between), len(after)))
    if make is None:
        return []
    placements = make(*before, *between, *after)
    if has_mlp:
        return placements
    return [
        (place, {name: norm for name, norm in named.items() if "mlp" not in name}, parallel)
        for place, named, parallel in placements
    ]


def _after_each(first: nn.Module, second: nn.Module | None = None) -> list[Placement]:
    """A norm after each part: after the sum, or on the branch before it."""
    second = first if second is None else second
    return [
        ("post", {"attention": first, "mlp": second}, False),
        ("output", {"attention_inside": first, "mlp_inside": second}, False),
    ]


_PLACEMENTS: dict[tuple[int, int, int], Callable[..., list[Placement]]] = {
    (0, 0, 0): lambda: [("pre", {}, False), ("pre", {}, True)],
    (1, 0, 0): lambda a: [("pre", {"attention": a, "mlp": a}, True)],
    (2, 0, 0): lambda a, b: [
        ("pre", {"attention": a, "mlp": b}, True),
        ("pre", {"attention": b, "mlp": a}, True),
    ],
    (0, 1, 0): lambda b: [("pre", {"mlp": b}, False), *_after_each(b)],
    (1, 1, 0): lambda a, b: [
        ("pre", {"attention": a, "mlp": b}, False),
        ("pre", {"attention": a, "mlp": b}, True),
    ],
    (0, 1, 1): _after_each,
    (1, 2, 1): lambda a, b, c, d: [
        ("both", {"attention": a, "attention_inside": b, "mlp": c, "mlp_inside": d}, False)
    ],
}
"""Where norms stand, by how many there are before attention, between the parts and at the end."""
