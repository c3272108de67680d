"""Attention of any model while it runs, where some of it cannot be read: that is noted.

It is heard through Transformers' interface, or else from PyTorch's own functions, or from a softmax
over pairs of tokens.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from rankscope.core.metrics import AttentionScores
from rankscope.core.tracing._attention import SIGNATURE, AttentionWatch, projected
from rankscope.core.tracing._attention_reading import Call
from rankscope.core.tracing._hidden_states import OperationWatch
from rankscope.errors import ModelError, RankscopeError

_MASKED: Final = -1e3
"""Scores below are hidden keys, or are so extreme that the two cannot be told apart."""
_SOFTMAX: Final = (functional.softmax, torch.softmax, Tensor.softmax)


class TolerantWatch(AttentionWatch):
    """Hears what goes through Transformers' interface; what cannot be read is noted, not raised."""

    def __init__(
        self,
        callback: Callable[[nn.Module, AttentionScores], None],
        unread: Callable[[str], None],
        model: nn.Module,
        *,
        verifies: bool = True,
    ) -> None:
        super().__init__(callback, list(model.modules()))
        self._note_unread, self._verifies = unread, verifies
        self.notes: list[str] | None = None
        """Those of the layer that was heard last."""
        self._notes: list[list[str] | None] = []

    def before(self, call: Call) -> AttentionScores | None:
        """As that of ``AttentionWatch``."""
        try:
            return super().before(call)
        except RankscopeError as error:
            self._note_unread(str(error).rstrip("."))
            return None

    def after(self, call: Call, scores: AttentionScores, output: Tensor) -> None:
        """As that of ``AttentionWatch``; the layer that was heard last is the one it is about."""
        if not self._verifies:
            return
        try:
            super().after(call, scores, output)
        except RankscopeError as error:
            self._note_unread(str(error).rstrip("."))
            return
        self._notes.append(self.notes)

    def mark(self) -> None:
        """Note every layer of which the output does not match what was read."""
        for (error, doubt), notes in zip(self._doubts, self._notes, strict=True):
            if notes is not None and not float(doubt) <= 1:
                notes.append(str(error).rstrip("."))


class FunctionWatch(OperationWatch):
    """Hears PyTorch's attention functions, and a softmax over pairs of tokens, by themselves."""

    def __init__(
        self, heard: Callable[[AttentionScores], None], unread: Callable[[str], None]
    ) -> None:
        super().__init__()
        self._heard, self._unread = heard, unread

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        try:
            scores = None
            if func is functional.scaled_dot_product_attention:
                scores = _of_fused(*args, **named)
            elif func is functional.multi_head_attention_forward:
                scores = _of_multi_head(*args, **named)
            elif func in _SOFTMAX:
                scores = _of_softmax(*args, **named)
            if scores is not None:
                self._heard(scores)
        except (RankscopeError, RuntimeError, TypeError) as error:
            self._unread(f"its attention cannot be read ({str(error).rstrip('.')})")
        return func(*args, **named)


def _of_fused(
    query: Tensor,
    key: Tensor,
    _value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **_options: Any,
) -> AttentionScores:
    """PyTorch's fused attention as scores."""
    if dropout_p:
        raise ModelError("it applies dropout")
    if query.ndim != 4:
        raise ModelError(f"queries have shape {tuple(query.shape)}")
    bias, mask = None, None
    if attn_mask is not None:
        while attn_mask.ndim < 4:
            attn_mask = attn_mask.unsqueeze(0)
        bias, mask = (None, attn_mask) if attn_mask.dtype == torch.bool else (attn_mask, None)
    return AttentionScores(
        query=query.detach().clone(),
        key=key.detach().clone(),
        scale=float(query.shape[-1] ** -0.5 if scale is None else scale),
        bias=bias,
        mask=mask,
        causal=is_causal,
    )


def _of_multi_head(*args: Any, **kwargs: Any) -> AttentionScores:
    """PyTorch's attention with its projections, which takes tokens first."""
    named = SIGNATURE.bind(*args, **kwargs)
    named.apply_defaults()
    given = named.arguments
    if given["query"].ndim != 3 or given["bias_k"] is not None or given["add_zero_attn"]:
        raise ModelError("it has no batch, or keys that are no tokens")
    if given["training"] and given["dropout_p"]:
        raise ModelError("it applies dropout")
    query, key = (tensor.permute(1, 2, 0, 3) for tensor in projected(*args, **kwargs))
    batch, heads, queries, keys = *query.shape[:3], key.shape[2]
    bias = query.new_zeros(1, 1, queries, keys)
    pairs, padding = given["attn_mask"], given["key_padding_mask"]
    if pairs is not None:
        shape = (1, 1, queries, keys) if pairs.ndim == 2 else (batch, heads, queries, keys)
        bias = bias + _added(pairs, query.dtype).reshape(shape)
    if padding is not None:
        bias = bias + _added(padding, query.dtype)[:, None, None, :]
    return AttentionScores(
        query=query,
        key=key,
        scale=float(query.shape[-1] ** -0.5),
        bias=bias,
        causal=bool(given["is_causal"] and pairs is None),
    )


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask of PyTorch's attention, True where a key is hidden, as what is added to logits."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)


def _of_softmax(
    input: Tensor,
    dim: int | None = None,
    *_: Any,
    **__: Any,
) -> AttentionScores | None:
    """A softmax over the last axis of (batch, head, token, token) as scores; None for others."""
    if input.ndim != 4 or input.shape[2] != input.shape[3] or dim not in (-1, 3):
        return None
    logits = input.detach().clone()
    lowest = torch.finfo(logits.dtype).min / 2
    if bool(((logits > lowest) & (logits < _MASKED)).any()):
        raise ModelError("logits below −1000 may be hidden keys, or not")
    nothing = logits.new_zeros(*logits.shape[:3], 0)
    key = logits.new_zeros(logits.shape[0], 1, logits.shape[3], 0)
    return AttentionScores(query=nothing, key=key, scale=1.0, bias=logits)
