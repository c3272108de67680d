"""Blocks of any architecture, recognised part by part: roles from names, the rest by trial.

The original runs once on a probe, and the calls inside every block are recorded. Names say which
projection makes queries, keys and values; the order of calls says which norm stands where; and
each open question (which scale, which rotary layout, a gain w or 1 + w, a norm before or after the
sum) is settled by computing the part both ways from the recorded input and keeping the one that
gives the recorded output. Nothing is assumed that the numbers do not confirm; if no reading does,
the error names the layer and the part.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rankscope.core import network
from rankscope.core.masks import Causal, Full, Mask, Window
from rankscope.core.network import (
    ACTIVATIONS,
    MLP,
    Attention,
    Block,
    Projection,
    Scores,
    Spec,
    View,
    Visibility,
)
from rankscope.core.tracing import ModuleCall, captured_calls
from rankscope.errors import RankscopeError, UnsupportedModelError
from rankscope.models.families._experts import expert_mlps, find_experts
from rankscope.models.families._projections import Slots
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

_ROLES = {
    role: re.compile(rf"(^|\.)({names})$")
    for role, names in {
        "query": "q|query|q_proj|q_lin|query_proj|Wq|wq|to_q|linear_q|project_q",
        "key": "k|key|k_proj|k_lin|key_proj|Wk|wk|to_k|linear_k|project_k",
        "value": "v|value|v_proj|v_lin|value_proj|Wv|wv|to_v|linear_v|project_v",
        "fused": "qkv|qkv_proj|Wqkv|query_key_value|c_attn|in_proj|W_pack",
        "gate": "g_proj|gate_proj|gate",
    }.items()
}
"""Names that projections of attention have, by what they make."""
_CROSS = re.compile(r"cross|encoder_attn|encdec|encoder_decoder", re.IGNORECASE)
_ATTENTION = re.compile(r"att", re.IGNORECASE)
_NORM = re.compile(r"norm|(^|\.)ln_?\d?$", re.IGNORECASE)

_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")
_HEAD_WIDTHS = ("head_dim", "attention_head_size", "head_size", "d_kv", "kv_channels")
_SCALES = ("scaling", "scale", "softmax_scale", "scale_qk", "norm_factor", "inv_norm_factor")
_EPSILONS = ("variance_epsilon", "eps", "epsilon", "norm_eps", "layer_norm_eps")
_MULTIPLIERS = ("residual_multiplier", "residual_scale", "scaling_factor", "res_scale")

TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Largest relative error allowed per dtype. Halves differ by their rounding, layer after layer; in
float64 rotary tables, which are float32 everywhere, differ by a rounding from device to device."""
_EXACT = {torch.float64: 1e-12, torch.float32: 3e-6, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""A reading this close is taken at once; otherwise the closest of all."""


class PathCall(NamedTuple):
    """A call inside a block, with the path of its module there."""

    path: str
    module: nn.Module
    x: Tensor
    output: Tensor


@dataclass(frozen=True)
class Observed:
    """One block on the probe: its input, its output, and the calls inside it in their order."""

    layer: int
    block: nn.Module
    x: Tensor
    output: Tensor
    calls: Sequence[PathCall]
    token_mask: Tensor | None

    def error(self, mine: Tensor, theirs: Tensor) -> float:
        """The relative error on real tokens; infinite for another shape."""
        if mine.shape != theirs.shape:
            return math.inf
        by_token = mine.shape[:2] == self.x.shape[:2]
        return relative_error(mine, theirs, self.token_mask if by_token else None)

    def visibility(self, mask: Mask) -> Visibility:
        return Visibility.of(mask, self.x.shape[1], self.token_mask, self.x.device)


def relative_error(mine: Tensor, theirs: Tensor, token_mask: Tensor | None = None) -> float:
    """The Frobenius norm of the difference, relative to that of the original, on real tokens."""
    mine, theirs = mine.double().cpu(), theirs.double().cpu()
    if token_mask is not None:
        mine, theirs = mine[token_mask.cpu()], theirs[token_mask.cpu()]
    size, error = torch.linalg.vector_norm(theirs), torch.linalg.vector_norm(mine - theirs)
    return float(error / size) if size > 0 else float(error)


def observe(
    blocks: Sequence[nn.Module],
    run: Callable[[], object],
    token_mask: Tensor | None,
    batch_first: Callable[[Tensor], Tensor],
) -> list[Observed]:
    """Run the original once and record what every block did; a shared block counts once."""
    places: dict[nn.Module, tuple[nn.Module, str]] = {}
    unique = list(dict.fromkeys(blocks))
    for block in unique:
        for path, module in block.named_modules():
            if path:
                places[module] = block, path
    calls = captured_calls([*unique, *places], run)
    inside: dict[nn.Module, list[PathCall]] = {block: [] for block in unique}
    ends: dict[nn.Module, ModuleCall] = {}
    for call in calls:
        if call.module in inside:
            ends.setdefault(call.module, call)
        elif call.module in places:
            block, path = places[call.module]
            if block not in ends:
                inside[block].append(PathCall(path, *call))
    if any(end.x.ndim != 3 for end in ends.values()):
        raise UnsupportedModelError(
            "the blocks exchange states that are not (batch, token, feature)."
        )
    inside = {
        block: [_by_token(c, ends[block].x) for c in calls]
        for block, calls in inside.items()
        if block in ends
    }
    numbers: dict[nn.Module, int] = {}
    for number, block in enumerate(blocks, start=1):
        numbers.setdefault(block, number)
    missing = [block for block in unique if block not in ends]
    if missing:
        raise UnsupportedModelError(
            f"layer {numbers[missing[0]]} ({type(missing[0]).__name__}) does not map one tensor "
            "of hidden states to another."
        )
    return [
        Observed(
            numbers[block],
            block,
            *(batch_first(state) for state in (ends[block].x, ends[block].output)),
            inside[block],
            token_mask,
        )
        for block in unique
    ]


def _by_token(call: PathCall, state: Tensor) -> PathCall:
    """A call on the tokens of all samples in a row as one on ``(batch, token, feature)``."""
    if call.x.ndim != 2 or len(call.x) != state.shape[0] * state.shape[1]:
        return call
    x, output = (t.unflatten(0, state.shape[:2]) for t in (call.x, call.output))
    return call._replace(x=x, output=output)


@dataclass
class Habits:
    """The readings that fitted earlier layers, tried first in the next."""

    chosen: dict[str, str] = field(default_factory=dict)

    def first(self, question: str, readings: Iterable["Reading"]) -> list["Reading"]:
        """The readings, the one that fitted last in front."""
        usual = self.chosen.get(question)
        return sorted(readings, key=lambda reading: reading.label != usual)


class Reading(NamedTuple):
    """One way to compute a part: its name, and what it builds."""

    label: str
    build: Callable[[], Any]


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


def recognise(
    observed: Observed, body: nn.Module, config: Any, habits: Habits, roles: Mapping[str, str]
) -> RecognisedBlock:
    """Take one block apart, settling every open question on its recorded calls."""
    calls = _Calls.of(observed)
    named = {role: re.compile(rf"(^|\.){re.escape(name)}$") for role, name in roles.items()}
    attention, mask, words = _attention(calls, body, config, habits, {**_ROLES, **named})
    mlp = _mlp(calls, config, habits)
    return _assemble(calls, attention, mlp, mask, words, config, habits)


@dataclass(frozen=True)
class _Calls:
    """The calls of a block by what they are."""

    observed: Observed
    attention: list[PathCall]
    """Projections of attention, in their order."""
    mlp: list[PathCall]
    """Projections of the MLP; the call of the whole, if it is a mixture of experts."""
    norms: dict[str, list[PathCall]]
    """Norms before attention, of its heads, between the parts, inside the MLP and after it."""

    @classmethod
    def of(cls, observed: Observed) -> "_Calls":
        linear = [call for call in observed.calls if _is_linear(call.module)]
        crossing = [call.path for call in linear if _CROSS.search(call.path)]
        if crossing:
            raise _refusal(observed, "attention", f"it attends to another sequence ({crossing[0]})")
        inside = [call for call in linear if _ATTENTION.search(call.path)]
        outside = [call for call in linear if not _ATTENTION.search(call.path)]
        mixture = _mixture(observed)
        if mixture is not None:
            outside = [mixture]
        if not inside:
            raise _refusal(observed, "attention", "it has none that is made of projections")
        position = {id(call): number for number, call in enumerate(observed.calls)}
        first, last = position[id(inside[0])], position[id(inside[-1])]
        begin = position[id(outside[0])] if outside else last
        if mixture is not None:
            under = (n for n, c in enumerate(observed.calls) if c.path.startswith(mixture.path))
            begin = next(under)
        end = position[id(outside[-1])] if outside else last
        norms: dict[str, list[PathCall]] = {
            name: [] for name in ("before", "heads", "between", "after", "inside")
        }
        for call in observed.calls:
            if not _is_norm(call):
                continue
            at = position[id(call)]
            if at < first:
                norms["before"].append(call)
            elif at < last:
                norms["heads"].append(call)
            elif at < begin or not outside:
                norms["between"].append(call)
            else:
                norms["after" if at > end else "inside"].append(call)
        if norms["inside"]:
            raise _refusal(observed, "MLP", f"it has a norm inside ({norms['inside'][0].path})")
        return cls(observed, inside, outside, norms)


def _mixture(observed: Observed) -> PathCall | None:
    """The call of the module that routes tokens to experts; None if there is none."""
    for call in observed.calls:
        direct = [m for _, m in call.module.named_children() if find_experts(m) is m]
        if direct and call.output.shape == observed.x.shape:
            return call
    return None


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _is_norm(call: PathCall) -> bool:
    named = _NORM.search(type(call.module).__name__) or _NORM.search(call.path)
    leaf = not any(True for _ in call.module.children())
    return bool(named) and leaf and call.x.shape == call.output.shape


def _refusal(observed: Observed, part: str, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"layer {observed.layer} ({type(observed.block).__name__}): its {part} is not converted, "
        f"because {why}; rankscope.trace and rankscope.diagnose work on the model without "
        "conversion."
    )


def _settle(
    observed: Observed,
    part: str,
    question: str,
    readings: Iterable[Reading],
    outputs: Callable[[Any], Tensor],
    expected: Tensor,
    habits: Habits,
) -> Any:
    """The first reading whose output is the recorded one."""
    closest, least, best = "", math.inf, None
    for reading in habits.first(question, list(readings)):
        try:
            built = reading.build()
            error = observed.error(outputs(built), expected)
        except (RankscopeError, RuntimeError, ValueError):  # shapes that this reading does not have
            continue
        if error < least:
            closest, least, best = reading.label, error, built
        if error <= _EXACT[expected.dtype]:
            break
    if least <= TOLERANCES[expected.dtype]:
        habits.chosen[question] = closest
        return best
    why = f"no known form gives its output (closest: {closest}, off by {short(least)})"
    raise _refusal(observed, part, why if closest else "its parts have no known form")


# Norms


def read_norm(call: PathCall, observed: Observed, config: Any, habits: Habits) -> nn.Module:
    """A norm of ours on the parameters of the original, with the same output on the probe."""
    module, width = call.module, call.x.shape[-1]
    if isinstance(module, nn.Identity):
        return module
    if type(module) in (nn.LayerNorm, nn.RMSNorm):
        return module
    stored = dict(module.named_parameters(recurse=False))
    gain = next(
        (stored[name] for name in ("weight", "gain", "scale", "gamma") if name in stored), None
    )
    bias = next((stored[name] for name in ("bias", "beta") if name in stored), None)
    if gain is not None and gain.shape != (width,):
        raise _refusal(observed, "norm", f"the gain of {call.path} has shape {tuple(gain.shape)}")

    def build(centers: bool, offset: bool, eps: float) -> nn.Module:
        if offset and gain is not None:
            return network.OffsetNorm(centers=centers, eps=eps, offset=gain, bias=bias)
        affine = {"elementwise_affine": gain is not None}
        made: nn.Module = (
            nn.LayerNorm(width, eps=eps, bias=bias is not None, **affine)
            if centers
            else nn.RMSNorm(width, eps=eps, **affine)
        )
        return network.share_gain(made, _Stored(gain, bias))

    epsilons = [getattr(module, name, None) for name in _EPSILONS]
    epsilons += [getattr(config, f"{kind}_norm_eps", None) for kind in ("rms", "layer")]
    known = dict.fromkeys(float(eps) for eps in [*epsilons, 1e-6, 1e-5, 1e-12] if eps is not None)
    kinds = product(known, (False, True), (False, True))
    readings = [
        Reading(
            f"{'LayerNorm' if centers else 'RMSNorm'}, eps {eps:g}{', 1 + w' * offset}",
            lambda c=centers, o=offset, e=eps: build(c, o, e),
        )
        for eps, offset, centers in kinds
    ]
    part = f"norm {call.path}"
    norm: nn.Module = _settle(
        observed,
        part,
        type(module).__name__,
        readings,
        lambda ours: ours(call.x),
        call.output,
        habits,
    )
    return norm


class _Stored(nn.Module):
    """Parameters under the names that norms give them."""

    def __init__(self, weight: nn.Parameter | None, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias


# Attention


def _attention(
    calls: _Calls,
    body: nn.Module,
    config: Any,
    habits: Habits,
    roles: Mapping[str, re.Pattern[str]],
) -> tuple[Attention, Mask, str]:
    observed, output = calls.observed, calls.attention[-1]
    x = calls.attention[0].x
    owners = _owners(observed.block, calls.attention[0].path)

    def stated(names: Iterable[str]) -> Any:
        """What the attention module or the configuration says, whichever says it."""
        sources = [*owners, config]
        return next(
            (v for o in sources for n in names if (v := getattr(o, n, None)) is not None), None
        )

    readings = [
        Reading(
            " ".join((layout.label, scored.label, f"scale {scale:.6g}", str(mask))),
            lambda layout=layout, scored=scored, scale=scale, mask=mask: (
                _build_attention(layout.build(), scored.build(), scale, output.module),
                mask,
                scored.label,
            ),
        )
        for layout in _layouts(calls, stated, roles)
        for mask in _masks(owners, config, observed.layer)
        for scale in _scales(calls, stated, config)
        for scored in _scores(calls, stated, body, config, owners, habits)
    ]

    def outputs(built: tuple[Attention, Mask, str]) -> Tensor:
        attention, mask, _ = built
        return attention(x, observed.visibility(mask))

    attention, mask, words = _settle(
        observed, "attention", "attention", readings, outputs, output.output, habits
    )
    return attention, mask, words


class Heads(NamedTuple):
    """Queries, keys, values, the gate of their outputs, and how many heads they have."""

    query: Projection
    key: Projection
    value: Projection
    heads: int
    kv_heads: int
    gate: Projection | None = None


def _build_attention(heads: Heads, scores: Scores, scale: float, output: nn.Module) -> Attention:
    return Attention(
        query=heads.query,
        key=heads.key,
        value=heads.value,
        output=plain(output),
        scores=scores,
        heads=heads.heads,
        kv_heads=heads.kv_heads,
        scale=scale,
        gate=heads.gate,
    )


def plain(module: nn.Module, *, scale: float | nn.Parameter = 1.0) -> Projection:
    """A projection as it is stored; transposed ones and scaled ones through a view."""
    if isinstance(module, nn.Linear) and isinstance(scale, float) and scale == 1.0:
        return module
    return View(module, Slots(transposed=not isinstance(module, nn.Linear)), scale=scale)


def _owners(block: nn.Module, path: str) -> list[nn.Module]:
    """The modules around a part of attention, the innermost first; the block is not one."""
    names = path.split(".")[:-1]
    return [block.get_submodule(".".join(names[:depth])) for depth in range(len(names), 0, -1)]


def _layouts(
    calls: _Calls, stated: Callable[[Iterable[str]], Any], roles: Mapping[str, re.Pattern[str]]
) -> Iterator[Reading]:
    """How queries, keys and values are stored."""
    observed, output = calls.observed, calls.attention[-1]
    width = stated(_HEAD_WIDTHS)
    heads = stated(_HEADS)
    by_role: dict[str, PathCall] = {}
    for call in calls.attention[:-1]:
        role = next((role for role, name in roles.items() if name.search(call.path)), None)
        if role is None or role in by_role:
            raise _refusal(observed, "attention", f"the role of {call.path} is unknown")
        by_role[role] = call
    inner = output.x.shape[-1]
    head_width = int(width) if width else inner // int(heads)
    count = inner // head_width
    gate = plain(by_role["gate"].module) if "gate" in by_role else None
    if {"query", "key", "value"} <= by_role.keys():
        query, key, value = (by_role[role] for role in ("query", "key", "value"))
        groups = key.output.shape[-1] // head_width
        parts = [plain(call.module) for call in (query, key, value)]
        if query.output.shape[-1] == 2 * inner and gate is None:  # queries beside their gates
            fused = [View(query.module, Slots(count, 2, part, part + 1)) for part in (0, 1)]
            yield Reading(
                "queries with gates",
                lambda: Heads(fused[0], parts[1], parts[2], count, groups, fused[1]),
            )
            return
        yield Reading("separate", lambda: Heads(*parts, count, groups, gate))
    elif "fused" in by_role:
        module = by_role["fused"].module
        total = by_role["fused"].output.shape[-1] // head_width
        groups = (total - count) // 2
        for label, layout in _fused(
            count, groups, turned=not isinstance(module, nn.Linear)
        ).items():
            views = [View(module, slots) for slots in layout]
            yield Reading(label, lambda views=views: Heads(*views, count, groups, gate))
    else:
        missing = next(role for role in ("query", "key", "value") if role not in by_role)
        raise _refusal(observed, "attention", f"no projection is its {missing}")


def _fused(heads: int, groups: int, *, turned: bool) -> dict[str, tuple[Slots, Slots, Slots]]:
    """Ways to keep queries, keys and values in one matrix: one after another, or by group."""
    total, each = heads + 2 * groups, heads // groups + 2
    ends = (0, heads, heads + groups, total)
    one_by_one = [Slots(1, total, *pair, turned) for pair in pairwise(ends)]
    inner = (0, each - 2, each - 1, each)
    by_group = [Slots(groups, each, *pair, turned) for pair in pairwise(inner)]
    return {"one after another": tuple(one_by_one), "group by group": tuple(by_group)}


def _scales(calls: _Calls, stated: Callable[[Iterable[str]], Any], config: Any) -> list[float]:
    """Scales of the logits that the module, the configuration or custom suggests."""
    width = stated(_HEAD_WIDTHS)
    heads = stated(_HEADS)
    inner = calls.attention[-1].x.shape[-1]
    head_width = float(width or inner // int(heads))
    numbers = [stated([name]) for name in _SCALES]
    stored = [float(value) for value in numbers if isinstance(value, int | float | Tensor)]
    stored = [value for value in stored if value > 0]
    usual = 1 / math.sqrt(head_width)
    found = [usual, *stored, 1.0, *(1 / value for value in stored)]
    for name in ("query_pre_attn_scalar", "attention_multiplier"):
        value = getattr(config, name, None)
        found += [value**-0.5, float(value)] if value else []
    found += [value * usual for value in stored]
    unique: list[float] = []
    for value in found:
        if not any(math.isclose(value, other, rel_tol=1e-6) for other in unique):
            unique.append(value)
    return unique


def _masks(owners: Sequence[nn.Module], config: Any, layer: int) -> list[Mask]:
    """Masks this layer may have, the one it is said to have first."""
    types = getattr(config, "layer_types", None)
    kind = types[layer - 1] if types and layer <= len(types) else None
    reach = next((r for o in owners if (r := getattr(o, "sliding_window", None))), None)
    if reach is None and kind not in ("full_attention", None):
        reach = getattr(config, "sliding_window", None) or getattr(config, "local_attention", None)
    if reach is None and types is None:
        reach = getattr(config, "sliding_window", None)
    masks: list[Mask] = [Causal(), Full()]
    says = next((c for o in owners if (c := getattr(o, "is_causal", None)) is not None), None)
    causal = says if says is not None else getattr(config, "is_decoder", False)
    if not causal:
        masks.reverse()
    if isinstance(reach, int) and reach > 0:
        windows: list[Mask] = [Window(before=reach - 1, after=0), Window(reach // 2, reach // 2)]
        windows.append(Window(before=reach - 1, after=reach - 1))
        if not causal:
            windows = [*windows[1:], windows[0]]
        masks = windows + masks if kind != "full_attention" else masks + windows
    return masks


def _scores(
    calls: _Calls,
    stated: Callable[[Iterable[str]], Any],
    body: nn.Module,
    config: Any,
    owners: Sequence[nn.Module],
    habits: Habits,
) -> Iterator[Reading]:
    """How positions, head norms, caps and sinks may enter."""
    observed = calls.observed
    norms = [read_norm(call, observed, config, habits) for call in calls.norms["heads"]]
    if len(norms) not in (0, 2):
        path = calls.norms["heads"][0].path
        raise _refusal(observed, "attention", f"it has a norm inside that is new to us ({path})")
    cap = stated(("softcap", "attn_logit_softcapping", "attn_logit_softcap"))
    sinks = next(
        (s for o in owners if isinstance(s := getattr(o, "sinks", None), nn.Parameter)), None
    )
    for label, make in _positions(stated, body, config):
        for last in (False, True) if norms else (False,):

            def build(make: Callable[[], Scores] = make, last: bool = last) -> Scores:
                scores = make()
                if norms:
                    scores = network.NormedHeads(*norms, scores, last=last)
                if cap:
                    scores = network.CappedScores(float(cap), scores)
                return scores if sinks is None else network.LearnedSinks(sinks, scores)

            parts = [label, "heads normalised" * bool(norms), " last" * last]
            parts += [
                f"logits capped at {cap}" if cap else "",
                "learned sinks" * (sinks is not None),
            ]
            yield Reading(", ".join(part for part in parts if part), build)


def _positions(
    stated: Callable[[Iterable[str]], Any],
    body: nn.Module,
    config: Any,
) -> Iterator[tuple[str, Callable[[], Scores]]]:
    """The ways in which scores may depend on positions."""
    heads = stated(_HEADS)
    farthest = getattr(config, "relative_attention_max_distance", 128)
    frequencies = list(_frequencies(body, config, stated))
    plain_scores: tuple[str, Callable[[], Scores]] = ("", Scores)
    if not frequencies:
        yield plain_scores
    for values, scaling in frequencies:
        for interleaved in (False, True):
            yield (
                "rotary, interleaved" if interleaved else "rotary",
                lambda v=values, s=scaling, i=interleaved: network.RotaryScores(
                    v, scaling=s, interleaved=i
                ),
            )
    if frequencies:
        yield plain_scores
    yield "ALiBi", lambda: network.ALiBi().build(int(heads), 1)
    for module in body.modules():
        if isinstance(module, nn.Embedding) and module.embedding_dim == heads:
            for two_sided in (True, False):
                yield (
                    "bias of distances",
                    lambda m=module, two=two_sided: network.BucketedBiasScores(
                        m, farthest=farthest, two_sided=two
                    ),
                )


def _frequencies(
    body: nn.Module, config: Any, stated: Callable[[Iterable[str]], Any]
) -> Iterator[tuple[Tensor, float]]:
    """Rotary frequencies that the model stores, or that its configuration implies."""
    seen: list[Tensor] = []
    for module in body.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if not name.endswith("inv_freq") or name.startswith("original") or buffer.ndim != 1:
                continue
            if any(torch.equal(buffer, other) for other in seen):
                continue
            seen.append(buffer)
            refuse_changing_rotary(module, name)
            scaling = getattr(module, name.replace("inv_freq", "attention_scaling"), 1.0)
            yield buffer, float(scaling)
    rotated = getattr(config, "rotary_dim", None)
    named = "rotary" in str(getattr(config, "position_embedding_type", ""))
    if not seen and (rotated or named or "roformer" in str(getattr(config, "model_type", ""))):
        width = int(rotated or stated(_HEAD_WIDTHS))
        yield 10000.0 ** (-torch.arange(0, width, 2).float() / width), 1.0


_FIXED_ROTARY = ("default", "linear", "llama3", "yarn", "proportional")


def refuse_changing_rotary(module: Any, name: str = "inv_freq") -> None:
    """Refuse rotary embeddings whose frequencies change with the sequence length."""
    kinds = getattr(module, "rope_type", "default")
    kind = kinds.get(name.replace("_inv_freq", ""), "default") if isinstance(kinds, dict) else kinds
    if kind not in _FIXED_ROTARY:
        raise UnsupportedModelError(
            f"rotary embeddings of type {kind!r} change with the sequence length and are not "
            f"converted ({', '.join(_FIXED_ROTARY)} are); rankscope.trace works on the model "
            "without conversion."
        )


# MLPs


def _mlp(calls: _Calls, config: Any, habits: Habits) -> MLP | None:
    observed = calls.observed
    if not calls.mlp:
        return None
    mixture = calls.mlp[0].module
    experts = find_experts(mixture)
    if experts is not None:
        mlps = expert_mlps(mixture, experts, _activations(config))
        readings = [Reading(label, lambda mlp=mlp: mlp) for label, mlp in mlps]
        x, expected = calls.mlp[0].x, calls.mlp[0].output
        routed: MLP = _settle(
            observed, "mixture of experts", "mlp", readings, lambda m: m(x), expected, habits
        )
        return routed
    *ins, down = calls.mlp
    if not ins or len(ins) > 2:
        raise _refusal(observed, "MLP", f"it has {len(calls.mlp)} projections")
    x, expected = ins[0].x, down.output
    readings = [
        Reading(
            f"{label}, {phi}",
            lambda up=up, gate=gate, phi=phi: MLP(
                up=up, down=plain(down.module), gate=gate, activation=phi
            ),
        )
        for phi in _activations(config)
        for label, up, gate in _ups(ins, down)
    ]
    made: MLP = _settle(observed, "MLP", "mlp", readings, lambda mlp: mlp(x), expected, habits)
    return made


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
        halves = [View(ins[0].module, Slots(1, 2, part, part + 1, turned)) for part in (0, 1)]
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


# Whole blocks


def _assemble(
    calls: _Calls,
    attention: Attention,
    mlp: MLP | None,
    mask: Mask,
    words: str,
    config: Any,
    habits: Habits,
) -> RecognisedBlock:
    """Put the parts together: where norms stand, what is parallel, how sums are scaled."""
    observed = calls.observed
    norms = {
        name: [read_norm(call, observed, config, habits) for call in calls.norms[name]]
        for name in ("before", "between", "after")
    }
    seen = observed.visibility(mask)
    owners: list[Any] = [observed.block, *observed.block.children(), config]
    stated = [getattr(owner, name, None) for owner in owners for name in _MULTIPLIERS]
    numbers = [float(value) for value in stated if isinstance(value, int | float)]
    scales: list[Any] = list(dict.fromkeys([1.0, *numbers, *(1 / n for n in numbers if n)]))
    by_feature = _layer_scales(observed.block)
    pairs = [(scale, scale) for scale in scales]
    if len(by_feature) == 2:
        pairs = [(by_feature[0], by_feature[1])]

    def build(
        place: str, named: Mapping[str, nn.Module], parallel: bool, pair: Any
    ) -> RecognisedBlock:
        scaled = attention.replaced(output=_scaled(attention.output, pair[0]))
        unit = mlp
        if mlp is not None:
            unit = MLP(
                up=mlp.up,
                down=_scaled(mlp.down, pair[1]),
                gate=mlp.gate,
                activation=mlp.activation,
                router=mlp.router,
            )
        fields = {"norm_place": place, "parallel": parallel}
        factors = any(isinstance(factor, Tensor) or factor != 1.0 for factor in pair)
        return RecognisedBlock(scaled, unit, named, mask, fields, words, factors)

    readings = [
        Reading(
            f"{place}, {'parallel' if parallel else 'sequential'}, scale {number}",
            lambda p=place, n=named, q=parallel, s=pair: build(p, n, q, s),
        )
        for place, named, parallel in _places(norms, has_mlp=mlp is not None)
        for number, pair in enumerate(pairs)
    ]

    def outputs(made: RecognisedBlock) -> Tensor:
        return make_block(made, observed.x.shape[-1])(observed.x, seen)

    found: RecognisedBlock = _settle(
        observed, "order of norms and sums", "block", readings, outputs, observed.output, habits
    )
    return found


def make_block(made: RecognisedBlock, width: int) -> Block:
    """A block of recognised parts."""
    ratio = 0.0 if made.mlp is None else 1.0
    spec = Spec(1, 1, width, mlp_ratio=ratio, **made.fields)
    return Block(spec, attention=made.attention, mlp=made.mlp, norms=made.norms)


def _scaled(projection: Projection, scale: float | nn.Parameter) -> Projection:
    if isinstance(scale, float) and scale == 1.0:
        return projection
    if isinstance(projection, View):
        return View(projection.source, projection.pick, weight=projection.name, scale=scale)
    return View(projection, Slots(), scale=scale)


def _layer_scales(block: nn.Module) -> list[nn.Parameter]:
    """The factors of each feature that are learned for what attention and MLP add."""
    return [
        parameter
        for path, parameter in block.named_parameters()
        if re.search(r"lambda_?[12]?$|layer_scale|(^|\.)ls\d|gamma_?[12]$", path)
        and parameter.ndim == 1
    ]


Named = Mapping[str, nn.Module]


def _places(
    norms: Mapping[str, Sequence[nn.Module]], *, has_mlp: bool
) -> list[tuple[str, Named, bool]]:
    """Norm placements with as many norms at each place: its name, the norms, whether parallel."""
    before, between, after = (norms[name] for name in ("before", "between", "after"))
    counts = len(before), len(between), len(after)
    if counts == (0, 0, 0):
        return [("pre", {}, parallel) for parallel in (False, True)]
    if not has_mlp:
        if counts == (1, 0, 0):
            return [("pre", {"attention": before[0]}, False)]
        if counts == (0, 1, 0):
            inside = {"attention_inside": between[0]}
            return [("post", {"attention": between[0]}, False), ("output", inside, False)]
        return []
    if counts == (1, 1, 0):
        pre = {"attention": before[0], "mlp": between[0]}
        return [("pre", pre, False), ("pre", pre, True)]
    if counts == (0, 1, 0):
        return [("pre", {"mlp": between[0]}, False)]
    if counts == (1, 0, 0):
        return [("pre", {"attention": before[0], "mlp": before[0]}, True)]
    if counts == (2, 0, 0):
        both = [{"attention": a, "mlp": m} for a, m in (before, before[::-1])]
        return [("pre", named, True) for named in both]
    if counts == (0, 1, 1):
        inside = {"attention_inside": between[0], "mlp_inside": after[0]}
        return [
            ("post", {"attention": between[0], "mlp": after[0]}, False),
            ("output", inside, False),
        ]
    if counts == (1, 2, 1):
        sandwich = {
            "attention": before[0],
            "attention_inside": between[0],
            "mlp": between[1],
            "mlp_inside": after[0],
        }
        return [("both", sandwich, False)]
    return []


def fits_whole(made: RecognisedBlock, observed: Observed) -> RecognisedBlock:
    """A block taken apart by hand, once it is seen to give the recorded output."""
    block = make_block(made, observed.x.shape[-1])
    error = observed.error(block(observed.x, observed.visibility(made.mask)), observed.output)
    if not error <= TOLERANCES[observed.output.dtype]:
        raise _refusal(observed, "block", f"its output is off by {short(error)}")
    return made
