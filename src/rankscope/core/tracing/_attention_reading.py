"""Calls of Transformers' attention interface read as ``AttentionScores``, and the reading checked.

Each implementation heeds its own options: ``sdpa`` drops a window and a sink that flash attention
heeds, and ``eager`` takes causality from its mask alone. What is read is compared with what the
model's own function then returns, for some of the queries: ``PV`` must be its output.
"""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.core.metrics import AttentionScores, from_matrix
from rankscope.core.network import Attention, Visibility
from rankscope.errors import ModelError, RankscopeError

_NAMES = ("module", "query", "key", "value", "attention_mask")
_PACKED = ("cu_seq_lens_q", "cu_seq_lens_k", "cache", "block_table")
_ROWS = 8
_TOLERANCE = {torch.bfloat16: 0.1, torch.float16: 0.02}
"""How far the output may be from ours: eager attention rounds scores to the model's own format."""


@dataclass(frozen=True, eq=False)
class Call:
    """One call of an attention function: what it was given, by name."""

    implementation: str
    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Any
    options: dict[str, Any]

    @classmethod
    def of(
        cls, name: str, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
    ) -> "Call":
        """By position or by name, as models call it."""
        names = list(_NAMES)
        if len(args) > len(names):
            names += list(inspect.signature(function).parameters)[len(names) :]
        arguments = {**dict(zip(names, args, strict=False)), **named}
        module, query, key, value = (arguments.pop(required) for required in _NAMES[:4])
        return cls(
            name, module, query, key, value, arguments.pop("attention_mask", None), arguments
        )

    def option(self, name: str) -> Any:
        """An option, None where it is not given or switched off."""
        value = self.options.get(name)
        return None if value is None or (isinstance(value, int | float) and not value) else value

    def refusal(self, why: str) -> ModelError:
        """What to do about attention that cannot be read."""
        other = "sdpa" if self.implementation != "sdpa" else "eager"
        return ModelError(
            f"the attention of {type(self.module).__name__}, computed by {self.implementation!r}, "
            f"{why}; load the model with attn_implementation={other!r}, or leave metrics of "
            "attention out."
        )


def read(call: Call) -> AttentionScores:
    """What the weights of a call are made of, or an error where that cannot be told."""
    reader = _READERS.get(call.implementation)
    if reader is None:
        raise call.refusal("is an implementation that is not known")
    packed = [name for name in _PACKED if call.options.get(name) is not None]
    if packed:
        raise call.refusal(f"has several sequences packed into one ({packed[0]})")
    if call.option("dropout"):
        raise ModelError(
            f"{type(call.module).__name__} drops attention weights at random (dropout="
            f"{call.option('dropout')}); put the model in evaluation mode: model.eval()."
        )
    try:
        return reader(call)
    except RankscopeError as error:
        if isinstance(error, ModelError):
            raise
        raise call.refusal(f"does not look like self-attention ({error})") from error


def _eager(call: Call) -> AttentionScores:
    """Functions in the models' own files: the mask is added, whatever it is."""
    sinks = getattr(call.module, "sinks", None)
    return _scores(
        call, bias=_sum(call.option("position_bias"), call.mask), softcap=call.option("softcap"),
        sinks=sinks if isinstance(sinks, Tensor) else call.option("s_aux"),
    )  # fmt: skip


def _sdpa(call: Call) -> AttentionScores:
    """PyTorch's: causality is a flag, heeded where there is no mask and more than one query."""
    queries, bias, mask = call.query.shape[2], call.option("position_bias"), call.mask
    causal = call.options.get("is_causal")
    causal = getattr(call.module, "is_causal", True) if causal is None else causal
    if queries > 1 and mask is None and causal:
        # Keys beyond the queries are places of a cache that nothing has been written to.
        bias = bias if bias is None else bias[..., :queries]
        return _scores(call, keys=queries, causal=True, bias=bias)
    if mask is not None and mask.dtype == torch.bool:
        return _scores(call, mask=mask, bias=bias)
    return _scores(call, bias=_sum(bias, mask))


def _flash(call: Call) -> AttentionScores:
    """Flash attention: a mask says which keys are real, the rest are flags."""
    mask, causal = call.mask, call.options.get("is_causal")
    if mask is not None:
        if mask.ndim != 2:
            raise call.refusal(f"has a mask of shape {tuple(mask.shape)}")
        mask = mask[:, None, None, -call.key.shape[2] :].bool()
    return _scores(
        call, mask=mask, causal=bool(call.module.is_causal if causal is None else causal),
        window=call.option("sliding_window"), softcap=call.option("softcap"),
        sinks=call.option("s_aux"),
    )  # fmt: skip


def _flex(call: Call) -> AttentionScores:
    """Flex attention: a mask is a function of positions, or is added."""
    flex: Any = sys.modules.get("torch.nn.attention.flex_attention")  # loaded if there is a mask
    bias, mask = call.option("position_bias"), call.mask
    if flex is not None and isinstance(mask, flex.BlockMask):
        (batch, heads), queries, keys = mask.shape[:2], call.query.shape[2], call.key.shape[2]
        device = str(call.query.device)
        mask = flex.create_mask(mask.mask_mod, batch, heads, queries, keys, device=device)
    else:
        bias, mask = _sum(bias, None if mask is None else mask[..., : call.key.shape[2]]), None
    return _scores(
        call, bias=bias, mask=mask, softcap=call.option("softcap"), sinks=call.option("s_aux")
    )


_READERS: dict[str, Callable[[Call], AttentionScores]] = {
    "eager": _eager,
    "sdpa": _sdpa,
    "flash_attention_2": _flash,
    "flash_attention_3": _flash,
    "flash_attention_4": _flash,
    "flex_attention": _flex,
}
"""By the exact name: what users register under one like it may compute anything."""


def _scores(
    call: Call, *, keys: int | None = None, sinks: Tensor | None = None, **more: Any
) -> AttentionScores:
    """``more`` are fields of ``AttentionScores``."""
    scale = call.options.get("scaling")
    return AttentionScores(
        query=call.query,
        key=call.key[:, :, :keys],
        scale=float(call.query.shape[-1] ** -0.5 if scale is None else scale),
        sinks=None if sinks is None else sinks.flatten(),
        **more,
    )


def _sum(bias: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """What is added to the scores in all."""
    if mask is not None and not mask.is_floating_point():
        mask = mask.to(torch.float32)
    return mask if bias is None else bias if mask is None else bias + mask


def mismatch(call: Call, scores: AttentionScores, output: Tensor) -> Tensor:
    """How far ``PV`` is from the output, for some queries that see something; at most 1 is sound.

    The root of the summed squares, in units of the tolerance, of the worst head. Values that are
    nearly alike give nearly the same ``PV`` whatever P is, so it is relative to what is left of
    ``PV`` and of the values without their mean. Where rounding alone would be more than the
    tolerance of that, P cannot be told, and it is relative to ``PV``. It stays on the device.
    """
    queries = scores.shape[2]
    rows = slice((queries - 1) % (step := max(1, queries // _ROWS)), queries, step)
    part = scores.weights(rows)
    batch, heads, count, keys = part.p.shape
    value = call.value[:, :, part.keys].to(part.p.dtype)
    if output.shape != (batch, queries, heads, value.shape[-1]):
        raise call.refusal(f"gives {tuple(output.shape)} for queries {tuple(call.query.shape)}")
    counted, groups = part.counted.unsqueeze(-1), value.shape[1]
    p = torch.where(counted, part.p, 0.0).reshape(batch, groups, heads // groups * count, keys)
    ours, telling = _applied(p, value)
    theirs = output[:, rows].transpose(1, 2).to(ours.dtype)
    ours, telling = ours.view(theirs.shape), telling.view(theirs.shape[:3]).sum(-1)
    apart = torch.where(counted, theirs - ours, 0.0).square().sum((-2, -1))
    size = ours.square().sum((-2, -1))
    tolerance = _TOLERANCE.get(output.dtype, 1e-3)
    distinguishes = telling * tolerance**2 > size * _rounding(output, ours.dtype) ** 2
    scale = torch.where(distinguishes, telling, size)
    return (apart / scale.clamp(min=1e-30)).amax().sqrt() / tolerance


def _applied(p: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """``PV``, and of each query what depends on P: the square of what is left of it without the
    values' mean over the keys seen, and what it would be if those values were drawn at random."""
    seen = (p > 0).any(-2).unsqueeze(-1).to(p.dtype)
    keys = seen.sum(-2, keepdim=True).clamp(min=1)
    mean = (value * seen).sum(-2, keepdim=True) / keys
    value = (value - mean) * seen
    deviation = p @ value
    drawn = p.square().sum(-1) * (value.square() / keys).sum((-2, -1)).unsqueeze(-1)
    product = deviation + p.sum(-1, keepdim=True) * mean  # a learned sink takes some of the weight
    return product, deviation.square().sum(-1) + drawn


def _rounding(output: Tensor, ours: torch.dtype) -> float:
    """The relative rounding of the output, or of sums over keys, whichever is larger."""
    eps = max(torch.finfo(output.dtype).eps, 8 * torch.finfo(ours).eps)
    tf32 = output.is_cuda and output.dtype == torch.float32
    return max(eps, 2.0**-10) if tf32 and torch.backends.cuda.matmul.allow_tf32 else eps


def network_scores(
    attention: Attention, x: Tensor, visibility: Visibility, token_mask: Tensor | None = None
) -> AttentionScores:
    """What a layer's weights are made of for this input.

    Weights that no softmax makes (sparsemax, linear kernels, Linformer) are taken as the matrices
    that they are.
    """
    if not attention.scores.fused:
        return from_matrix(attention.pattern(x, visibility), token_mask)
    query, key = attention.query_key(x, visibility)
    return AttentionScores(
        query=query,
        key=key,
        scale=attention.scale,
        bias=attention.scores.bias(query, key, visibility.positions),
        mask=visibility.allowed,
        token_mask=token_mask,
    )
