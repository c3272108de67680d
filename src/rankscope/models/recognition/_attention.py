"""Attention recognised: how heads are stored, how positions enter, which scale and which mask."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rankscope.core import network
from rankscope.core.masks import Causal, Full, Mask, Window
from rankscope.core.network import Attention, Projection, Scores, View
from rankscope.errors import UnsupportedModelError
from rankscope.models.recognition._observation import Habits, Observed, PathCall, Reading
from rankscope.models.recognition._projections import Slots, plain
from rankscope.process import require

ROLES = {
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
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")
_HEAD_WIDTHS = ("head_dim", "attention_head_size", "head_size", "d_kv", "kv_channels")
_SCALES = ("scaling", "scale", "softmax_scale", "scale_qk", "norm_factor", "inv_norm_factor")
_CAPS = ("softcap", "attn_logit_softcapping", "attn_logit_softcap")
_MULTIPLIERS = ("query_pre_attn_scalar", "attention_multiplier")
_WINDOWS = ("sliding_window", "local_attention", "window_size")
_FIXED_ROTARY = ("default", "linear", "llama3", "yarn", "proportional")
_CHANGING_ROTARY = ("dynamic", "longrope")


@dataclass(frozen=True)
class AttentionParts:
    """What is known of one attention sublayer before anything is tried."""

    observed: Observed
    projections: Sequence[PathCall]
    """In the order of their calls; the last is the output."""
    inner_norms: Mapping[str, nn.Module]
    """Norms inside attention, by their path: of heads, or of latent features."""
    body: nn.Module
    config: Any
    roles: Mapping[str, re.Pattern[str]]
    scores: "DescribedScores | None" = None
    """Scores that a family describes, in place of the usual ways in which positions enter."""

    @property
    def output(self) -> PathCall:
        return self.projections[-1]

    @property
    def owners(self) -> list[nn.Module]:
        """The modules around the projections, the innermost first, without the block itself."""
        names = self.projections[0].path.split(".")[:-1]
        paths = [".".join(names[:depth]) for depth in range(len(names), 0, -1)]
        return [self.observed.block.get_submodule(path) for path in paths]

    def stated(self, *names: str) -> Any:
        """What attention, its block or the configuration calls by one of these names."""
        for source in [*self.owners, self.observed.block, self.config]:
            for name in names:
                value = getattr(source, name, None)
                if value is not None:
                    return value
        return None

    def ending(self, *names: str) -> PathCall | None:
        """The call of the projection whose path ends with one of these names."""
        ends = (call for call in self.projections if call.path.split(".")[-1] in names)
        return next(ends, None)

    @property
    def latent(self) -> bool:
        """Whether keys and values come from a few features that are normalised (DeepSeek)."""
        return self.ending("kv_a_proj_with_mqa") is not None

    @property
    def head_width(self) -> int:
        if self.latent:
            return int(self.stated("v_head_dim"))
        width = self.stated(*_HEAD_WIDTHS)
        return int(width) if width else self.output.x.shape[-1] // int(self.stated(*_HEADS))

    @property
    def heads(self) -> int:
        return int(self.output.x.shape[-1]) // self.head_width


DescribedScores = Callable[[AttentionParts], Iterable[Reading[Scores]]]
"""What a family knows about the scores of its attention."""


class ReadAttention(NamedTuple):
    """Attention in our parts, its mask, and its score in words (empty for plain products)."""

    attention: Attention
    mask: Mask
    words: str


def read_attention(parts: AttentionParts, habits: Habits) -> ReadAttention:
    """Settle how attention works on its recorded input and output."""
    observed, x = parts.observed, parts.projections[0].x
    if parts.stated(*_HEAD_WIDTHS, *_HEADS) is None:
        names = ", ".join(_HEADS)
        why = f"neither it nor the configuration states its heads (as {names})"
        raise observed.refusal("attention", why)
    if x.shape[-1] != parts.output.output.shape[-1]:
        raise observed.refusal("attention", "its output has other features than its input")
    layouts = list(_layouts(parts))
    scores = list(_scores(parts) if parts.scores is None else parts.scores(parts) or ())
    if not all(isinstance(score, Reading) for score in scores):
        raise observed.refusal("attention", "what the description gives as scores is no Reading")
    readings = [
        Reading(
            f"{layout.label}, {score.label or 'dot product'}, scale {scale:.6g}",
            partial(_build, parts, layout, score, scale, mask),
        )
        # The mask is no part of the label: layers alternate, and a probe may not tell them apart.
        for mask in _masks(parts)
        for scale in _scales(parts)
        for layout in layouts
        for score in scores
    ]
    return habits.settle(
        "attention",
        readings,
        lambda read: read.attention(x, observed.visibility(read.mask)),
        parts.output.output,
        observed,
    )


class Heads(NamedTuple):
    """Queries, keys and values, how many heads they have, and the gate of their outputs."""

    query: Projection
    key: Projection
    value: Projection
    heads: int
    kv_heads: int
    gate: Projection | None = None


def _build(
    parts: AttentionParts,
    layout: Reading[Heads],
    score: Reading[Scores],
    scale: float,
    mask: Mask,
) -> ReadAttention:
    scores = score.build()
    attention = Attention(
        **layout.build()._asdict(),
        output=plain(parts.output.module),
        scores=scores,
        scale=getattr(scores, "scale", scale),  # of one that has it in its own terms, too
    )
    return ReadAttention(attention, mask, score.label)


def _layouts(parts: AttentionParts) -> Iterator[Reading[Heads]]:
    """How queries, keys and values are stored."""
    if parts.latent:
        yield Reading("latent heads", partial(_latent_heads, parts))
        return
    calls: dict[str, PathCall] = {}
    for call in parts.projections[:-1]:
        role = next((role for role, name in parts.roles.items() if name.search(call.path)), None)
        if role is None or role in calls:
            raise parts.observed.refusal("attention", f"the role of {call.path} is unknown")
        calls[role] = call
    heads, width = parts.heads, parts.head_width
    gate = plain(calls["gate"].module) if "gate" in calls else None
    if {"query", "key", "value"} <= calls.keys():
        query, key, value = (plain(calls[role].module) for role in ("query", "key", "value"))
        groups = calls["key"].output.shape[-1] // width
        if calls["query"].output.shape[-1] == 2 * heads * width and gate is None:
            halves = [View(calls["query"].module, Slots(heads, 2, k, k + 1)) for k in (0, 1)]
            made = Heads(halves[0], key, value, heads, groups, halves[1])
            yield Reading("queries beside gates", partial(_same, made))
        made = Heads(query, key, value, heads, groups, gate)
        yield Reading("separate heads", partial(_same, made))
    elif "fused" in calls:
        module = calls["fused"].module
        groups = (calls["fused"].output.shape[-1] // width - heads) // 2
        for label, slots in _fused_layouts(heads, groups).items():
            turned = not isinstance(module, nn.Linear)
            views = [View(module, slot.turned(turned)) for slot in slots]
            made = Heads(views[0], views[1], views[2], heads, groups, gate)
            yield Reading(label, partial(_same, made))
    else:
        missing = next(role for role in ("query", "key", "value") if role not in calls)
        raise parts.observed.refusal("attention", f"no projection makes its {missing}")


def _latent_heads(parts: AttentionParts) -> Heads:
    """DeepSeek: keys and values from latent features, and a rotary part that heads share."""
    down, up = parts.ending("kv_a_proj_with_mqa"), parts.ending("kv_b_proj")
    assert down is not None
    norms = {path.split(".")[-1]: norm for path, norm in parts.inner_norms.items()}
    if up is None or "kv_a_layernorm" not in norms:
        raise parts.observed.refusal("attention", "its latent features have no known form")
    heads, plain_width = parts.heads, int(parts.stated("qk_nope_head_dim"))
    rank, width = int(parts.stated("kv_lora_rank")), plain_width + parts.head_width
    ends = (0, rank, down.output.shape[-1])
    latent, shared = (View(down.module, Slots(1, ends[2], *pair)) for pair in pairwise(ends))
    keys, values = (
        View(up.module, Slots(heads, width, *pair)) for pair in pairwise((0, plain_width, width))
    )
    key = network.Latent(latent, norms["kv_a_layernorm"], keys)
    value = network.Latent(latent, norms["kv_a_layernorm"], values)
    whole, first, second = (parts.ending(name) for name in ("q_proj", "q_a_proj", "q_b_proj"))
    if whole is not None:
        query: Projection = plain(whole.module)
    elif first is not None and second is not None:
        query = network.Latent(plain(first.module), norms["q_a_layernorm"], plain(second.module))
    else:
        raise parts.observed.refusal("attention", "no projection makes its query")
    return Heads(query, network.PartlyShared(heads, key, shared), value, heads, heads)


def _same(heads: Heads) -> Heads:
    return heads


def _fused_layouts(heads: int, groups: int) -> dict[str, list[Slots]]:
    """Ways to keep queries, keys and values in one matrix: one after another, or by group."""
    if groups < 1 or heads % groups:
        return {}
    each = heads // groups + 2
    stretches = pairwise((0, heads, heads + groups, heads + 2 * groups))
    inside = pairwise((0, each - 2, each - 1, each))
    return {
        "one after another": [Slots(1, heads + 2 * groups, *stretch) for stretch in stretches],
        "group by group": [Slots(groups, each, *stretch) for stretch in inside],
    }


def _scales(parts: AttentionParts) -> list[float]:
    """Scales of the logits that the module, the configuration or custom suggests."""
    usual = 1 / math.sqrt(parts.head_width)
    numbers = [parts.stated(name) for name in _SCALES]
    single = [n for n in numbers if not isinstance(n, Tensor) or n.numel() == 1]
    stored = [float(value) for value in single if isinstance(value, int | float | Tensor)]
    stored = [value for value in stored if value > 0]
    scales = [usual, *stored, 1.0, *(1 / value for value in stored)]
    multipliers = [getattr(parts.config, name, None) for name in _MULTIPLIERS]
    for value in filter(None, multipliers):
        scales += [value**-0.5, float(value)]
    scales += [value * usual for value in stored]
    distinct: list[float] = []
    for value in scales:
        if not any(math.isclose(value, other, rel_tol=1e-6) for other in distinct):
            distinct.append(value)
    return distinct


def _masks(parts: AttentionParts) -> list[Mask]:
    """Masks this layer may have, the one it is said to have first."""
    config, layer = parts.config, parts.observed.layer
    types = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    kind = types[layer - 1] if types and layer <= len(types) else None
    whole = kind in ("full_attention", "global")
    reach = next((r for o in parts.owners if (r := getattr(o, "sliding_window", None))), None)
    if reach is None and not whole:
        reach = next((r for name in _WINDOWS if (r := getattr(config, name, None))), None)
    causal = next(
        (c for o in parts.owners if (c := getattr(o, "is_causal", None)) is not None), None
    )
    if causal is None:
        causal = getattr(config, "is_decoder", False)
    masks: list[Mask] = [Causal(), Full()] if causal else [Full(), Causal()]
    if not isinstance(reach, int) or reach < 1:
        return masks
    windows: list[Mask] = [Window(reach // 2, reach // 2), Window(reach - 1, reach - 1)]
    windows.insert(0 if causal else 2, Window(reach - 1, 0))
    return masks + windows if whole else windows + masks


def _scores(parts: AttentionParts) -> Iterator[Reading[Scores]]:
    """How positions, norms of heads, caps and sinks may enter."""
    norms = [] if parts.latent else list(parts.inner_norms.values())
    if len(norms) not in (0, 2):
        raise parts.observed.refusal("attention", f"it has {len(norms)} norms inside")
    cap = parts.stated(*_CAPS)
    sinks = next(
        (s for o in parts.owners if isinstance(s := getattr(o, "sinks", None), nn.Parameter)), None
    )
    for position in _positions(parts):
        for last in (False, True) if norms else (False,):
            words = [position.label] if position.label else []
            words += [f"heads normalised{' last' * last}"] if norms else []
            words += [f"logits capped at {cap:g}"] if cap else []
            words += ["learned sinks"] if sinks is not None else []
            yield Reading(", ".join(words), partial(_score, position, norms, last, cap, sinks))


def _score(
    position: Reading[Scores],
    norms: Sequence[nn.Module],
    last: bool,
    cap: float | None,
    sinks: nn.Parameter | None,
) -> Scores:
    scores = position.build()
    if norms:
        scores = network.NormedHeads(norms[0], norms[1], scores, last=last)
    if cap:
        scores = network.CappedScores(float(cap), scores)
    return scores if sinks is None else network.LearnedSinks(sinks, scores)


def _positions(parts: AttentionParts) -> Iterator[Reading[Scores]]:
    """The ways in which scores may depend on positions, the likeliest first."""
    start = int(parts.stated("qk_nope_head_dim")) if parts.latent else 0
    for make in _rotary(parts):
        for interleaved in (False, True):
            label = f"rotary{', interleaved' * interleaved}"
            yield Reading(label, partial(make, start=start, interleaved=interleaved))
    if parts.observed.token_mask is None:  # images have one size, so tables are fixed
        for cos, sin in (pair for pair in parts.observed.rotations if len(pair) == 2):
            halves = (table.flatten(0, -2)[:, : table.shape[-1] // 2] for table in (cos, sin))
            yield Reading("rotations of a grid", partial(network.RotaryTable, *halves))
    yield Reading("", Scores)
    heads = parts.heads
    yield Reading("ALiBi", partial(network.ALiBi().build, heads, parts.head_width))
    farthest = getattr(parts.config, "relative_attention_max_distance", 128)
    for module in parts.body.modules():
        if isinstance(module, nn.Embedding) and module.embedding_dim == heads:
            bias = partial(network.BucketedBiasScores, module, farthest=farthest)
            for two_sided in (True, False):
                yield Reading("bias of distances", partial(bias, two_sided=two_sided))


def _rotary(parts: AttentionParts) -> Iterator[Callable[..., Scores]]:
    """Rotary embeddings by the frequencies that the model stores, or its configuration implies."""
    seen: list[Tensor] = []
    for module in parts.body.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if not name.endswith("inv_freq") or "original" in name or buffer.ndim != 1:
                continue
            layers = name.removesuffix("inv_freq").removesuffix("_")  # of one type, or of all
            first = getattr(module, f"{layers}_original_inv_freq".lstrip("_"), buffer)
            if any(torch.equal(first, other) for other in seen):
                continue
            seen.append(first)
            scaling = getattr(module, f"{layers}_attention_scaling".lstrip("_"), 1.0)
            make = partial(network.RotaryScores, first, scaling=float(scaling))
            kind = getattr(module, "rope_type", "default")
            kind = kind.get(layers, "default") if isinstance(kind, dict) else kind
            changing = parts.observed.token_mask is not None and kind not in _FIXED_ROTARY
            yield _changing_rotary(parts, kind, layers, make) if changing else make
    if seen:
        return
    rotated = getattr(parts.config, "rotary_dim", None)
    kind = str(getattr(parts.config, "position_embedding_type", ""))
    if rotated or "rotary" in kind or getattr(parts.config, "model_type", "") == "roformer":
        width = int(rotated or parts.head_width)
        frequencies = 10000.0 ** (-torch.arange(0, width, 2).float() / width)
        yield partial(network.RotaryScores, frequencies)


def _changing_rotary(
    parts: AttentionParts, kind: str, layers: str, make: partial[network.RotaryScores]
) -> Callable[..., Scores]:
    """Rotary embeddings whose frequencies change with the length, by the library's own formula."""
    settings = getattr(parts.config, "rope_parameters", None) or {}
    settings = settings.get(layers, settings)
    limit = settings.get("original_max_position_embeddings")
    limit = limit or getattr(parts.config, "max_position_embeddings", None)
    if kind not in _CHANGING_ROTARY or not limit:
        raise UnsupportedModelError(
            f"rotary embeddings of type {kind!r} change with the sequence length in a way that is "
            "not converted; rankscope.trace works on the model without conversion."
        )
    longer = partial(_longer_frequencies, kind, parts.config, layers or None)
    return partial(network.ChangingRotary, *make.args, **make.keywords, limit=limit, longer=longer)


def _longer_frequencies(kind: str, config: Any, layers: str | None, tokens: int) -> Tensor:
    rotary = require("transformers.modeling_rope_utils")
    kinds = {} if layers is None else {"layer_type": layers}
    frequencies: Tensor = rotary.ROPE_INIT_FUNCTIONS[kind](config, None, seq_len=tokens, **kinds)[0]
    return frequencies
