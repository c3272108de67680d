"""Read calls of Transformers' attention interface as ``AttentionScores``, and verify the reading.

Each implementation respects different options: ``sdpa`` ignores a window and a sink that flash
attention uses, and ``eager`` takes causality from its mask alone. For some of the queries, the
result is compared with the output of the model's own function, which must be ``PV``.
"""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.core.metrics import AttentionScores, from_matrix
from rankscope.core.network import Attention, CappedScores, LearnedSinks, Scores, Visibility
from rankscope.errors import ModelError, RankscopeError, UnsupportedModelError

_NAMES = ("module", "query", "key", "value", "attention_mask")
_PACKED = ("cu_seq_lens_q", "cu_seq_lens_k", "cache", "block_table")
_PLAIN = (bool, int, float, str, type(None))
_LIBRARY = "transformers."
_ROWS = 8
_TOLERANCE = {torch.bfloat16: 0.1, torch.float16: 0.02}
"""Tolerance of the comparison: eager attention rounds scores to the dtype of the model."""


@dataclass(frozen=True, eq=False)
class Call:
    """One call of an attention function: its arguments by name."""

    implementation: str
    function: Callable[..., Any]
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
        """A call from its positional and keyword arguments."""
        names = list(_NAMES)
        if len(args) > len(names):
            names += list(inspect.signature(function).parameters)[len(names) :]
        values = {**dict(zip(names, args, strict=False)), **named}
        module, query, key, value = (values.pop(required) for required in _NAMES[:4])
        mask = values.pop("attention_mask", None)
        return cls(name, function, module, query, key, value, mask, values)

    @property
    def kind(self) -> Any:
        """What decides how the call is read, apart from the numbers in its tensors.

        None if that is not known: of a function that does not belong to Transformers, or with
        options that are objects.
        """
        values = [self.query, self.key, self.value, self.mask, *self.options.values()]
        known = all(isinstance(value, Tensor) or type(value) in _PLAIN for value in values)
        if not known or not str(getattr(self.function, "__module__", "")).startswith(_LIBRARY):
            return None
        shapes = [(x.dtype, x.shape) if isinstance(x, Tensor) else x for x in values]
        return id(self.module), self.implementation, self.function, *self.options, *shapes

    def option(self, name: str) -> Any:
        """An option; None if it is missing or switched off."""
        value = self.options.get(name)
        return None if value is None or (isinstance(value, int | float) and not value) else value

    def refusal(self, why: str) -> ModelError:
        """The error for attention that cannot be read, with advice."""
        other = "sdpa" if self.implementation != "sdpa" else "eager"
        return ModelError(
            f"the attention of {type(self.module).__name__}, computed by {self.implementation!r}, "
            f"{why}; load the model with attn_implementation={other!r}, or omit attention "
            "metrics."
        )


def read(call: Call) -> AttentionScores:
    """The scores behind the weights of a call; raises if they cannot be determined."""
    reader = _READERS.get(call.implementation)
    if reader is None:
        raise call.refusal("is an unknown implementation")
    packed = [name for name in _PACKED if call.options.get(name) is not None]
    if packed:
        raise call.refusal(f"has several sequences packed into one ({packed[0]})")
    if call.option("dropout"):
        raise ModelError(
            f"{type(call.module).__name__} applies dropout to attention weights (dropout="
            f"{call.option('dropout')}); put the model in evaluation mode: model.eval()."
        )
    try:
        return reader(call)
    except RankscopeError as error:
        if isinstance(error, ModelError):
            raise
        raise call.refusal(f"does not look like self-attention ({error})") from error


def _eager(call: Call) -> AttentionScores:
    """Functions in the files of the models: the mask is added to the scores."""
    sinks = getattr(call.module, "sinks", None)
    return _scores(
        call, bias=_sum(call.option("position_bias"), call.mask), softcap=call.option("softcap"),
        sinks=sinks if isinstance(sinks, Tensor) else call.option("s_aux"),
    )  # fmt: skip


def _sdpa(call: Call) -> AttentionScores:
    """PyTorch's: causality is a flag, used if there is no mask and more than one query."""
    queries, bias, mask = call.query.shape[2], call.option("position_bias"), call.mask
    causal = call.options.get("is_causal")
    causal = getattr(call.module, "is_causal", True) if causal is None else causal
    if queries > 1 and mask is None and causal:
        # Keys beyond the queries are empty slots of a cache.
        bias = bias if bias is None else bias[..., :queries]
        return _scores(call, keys=queries, causal=True, bias=bias)
    if mask is not None and mask.dtype == torch.bool:
        return _scores(call, mask=mask, bias=bias)
    return _scores(call, bias=_sum(bias, mask))


def _flash(call: Call) -> AttentionScores:
    """Flash attention: the mask marks the real keys; the rest are flags."""
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
    """Flex attention: the mask is a function of positions, or is added to the scores."""
    flex: Any = sys.modules.get("torch.nn.attention.flex_attention")  # imported if there is a mask
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
"""By exact name: functions that users register under similar names may compute anything."""


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
    """The total of what is added to the scores."""
    if mask is not None and not mask.is_floating_point():
        mask = mask.to(torch.float32)
    return mask if bias is None else bias if mask is None else bias + mask


def mismatch(call: Call, scores: AttentionScores, output: Tensor) -> Tensor:
    """The distance of ``PV`` from the output, for some of the queries; at most 1 is a match.

    The root of the summed squares of the worst head, in units of the tolerance. Nearly equal values
    give nearly the same ``PV`` for any P, so the distance is relative to ``PV`` after the mean of
    the values is subtracted. If rounding alone would exceed the tolerance of that, P cannot be
    determined, and the distance is relative to ``PV``. The result stays on the device.
    """
    queries = scores.shape[2]
    rows = slice((queries - 1) % (step := max(1, queries // _ROWS)), queries, step)
    part = scores.weights(rows)
    batch, heads, count, keys = part.p.shape
    value = call.value[:, :, part.keys].to(part.p.dtype)
    if output.shape != (batch, queries, heads, value.shape[-1]):
        raise call.refusal(f"returns {tuple(output.shape)} for queries {tuple(call.query.shape)}")
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
    """``PV``, and for each query the part that depends on P: its square after the mean of the
    values over the visible keys is subtracted, plus the expected square for random values."""
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
    """The scores behind the attention weights of a layer for this input.

    Weights without a softmax (sparsemax, linear kernels, Linformer) are passed as matrices, and so
    are those whose cap bends biases, too.
    """
    scores: Scores = attention.scores
    sinks: Tensor | None = None
    cap: float | None = None
    if isinstance(scores, LearnedSinks):
        sinks, scores = scores.sinks, scores.then
    if isinstance(scores, CappedScores):
        cap, scores = scores.cap, scores.then
    if not scores.fused:
        return from_matrix(attention.pattern(x, visibility), token_mask)
    query, key = attention.query_key(x, visibility)
    bias = scores.bias(query, key, visibility.positions)
    if cap is not None and bias is not None:  # the cap is on their sum
        if sinks is not None:
            raise UnsupportedModelError(
                "metrics of attention do not support learned sinks beside capped biases."
            )
        return from_matrix(attention.pattern(x, visibility), token_mask)
    return AttentionScores(
        query=query,
        key=key,
        scale=attention.scale,
        bias=bias,
        mask=visibility.allowed,
        softcap=cap,
        sinks=sinks,
        token_mask=token_mask,
    )
