"""Whether hidden states have the batch or the tokens first, from what can be seen."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from rankscope.core.network import Network
from rankscope.core.tracing._inputs import Ids
from rankscope.errors import InputError, ShapeError

Layout = Literal["batch token feature", "token batch feature"]
BATCH_FIRST, TOKEN_FIRST = get_args(Layout)
_SETTLE = f"say which: layout={BATCH_FIRST!r} or layout={TOKEN_FIRST!r}."
_OWN_LAYERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


class LayoutChoice:
    """The order of the first two axes: as told, as known of the model, or as its parts show it.

    ``words`` is what was decided and why, once it is.
    """

    def __init__(
        self,
        model: nn.Module,
        stack: Sequence[nn.Module],
        *,
        said: Layout | None,
        model_type: str | None,
        ids: Ids | None,
    ) -> None:
        self._said, self._ids, self._model_type = said, ids, model_type
        self._own = isinstance(model, Network)
        self._first = stack[0]
        self.token_first: bool | None = None
        self.words = ""
        self._known(model_type)

    @property
    def attentions(self) -> list[nn.MultiheadAttention]:
        """PyTorch's own attention inside the first block, whose input shows the layout."""
        if self.token_first is not None:
            return []
        return [m for m in self._first.modules() if isinstance(m, nn.MultiheadAttention)]

    def look_at_state(self, hidden: Tensor) -> None:
        """Decide by the shape of the first block's input, unless its parts are to be asked."""
        if hidden.ndim == 2:
            self._refuse_unpadded(hidden)
            self._decide(token_first=False, why="a single sequence")
        if self._said is None and not self._own and hidden.ndim == 3:
            self._look_at_shape(hidden)
        if self.token_first is None and not self.attentions:
            ids = self._ids
            if ids is not None and ids.are_ids and ids.batch == ids.tokens > 1:
                raise InputError(
                    f"{ids.name} has as many samples as tokens, {ids.batch}, so which axis of the "
                    f"hidden states is the batch cannot be seen; {_SETTLE}"
                )
            self._decide(token_first=False, why="the usual order")

    def look_at_query(self, attention: nn.MultiheadAttention, query: Any, hidden: Tensor) -> None:
        """Decide by what PyTorch's attention is given, whose own layout is known."""
        if self.token_first is not None or not isinstance(query, Tensor) or query.ndim != 3:
            return
        a, b = hidden.shape[:2]
        if query.shape[:2] == (a, b) == (b, a):
            turned = self._turned_square(attention, query, hidden)
        elif query.shape[:2] in ((a, b), (b, a)):
            turned = query.shape[:2] == (b, a)
        else:
            return
        self._decide(
            token_first=attention.batch_first == turned,
            why="the axes of what PyTorch's attention in the first block is given",
        )

    def settle(self) -> None:
        """The first block ran and its attention was never called, or not on sequences."""
        if self.token_first is None:
            inside = self.attentions
            if not all(each.batch_first for each in inside):
                raise InputError(
                    "PyTorch's attention in the first block wants the tokens first, but it was not "
                    f"called on the block's tokens, so the block's own layout is not known; "
                    f"{_SETTLE}"
                )
            self._decide(token_first=False, why="the usual order")

    def _known(self, model_type: str | None) -> None:
        if self._said is not None:
            self._decide(token_first=self._said == TOKEN_FIRST, why="as told")
        elif self._own:
            self._decide(token_first=False, why="our own network")
        elif type(self._first) in _OWN_LAYERS:
            attention: Any = self._first.self_attn
            self._decide(token_first=not attention.batch_first, why="PyTorch's own layer")
        elif model_type == "xlnet":
            self._decide(token_first=True, why="XLNet")

    def _look_at_shape(self, hidden: Tensor) -> None:
        """Compare the first block's input with the token ids."""
        if self._ids is None:
            return
        batch, tokens = self._ids.batch, self._ids.tokens
        a, b = hidden.shape[:2]
        if self.token_first is not None:
            found = b if self.token_first else a
            certain = self._ids.are_ids and type(self._first) not in _OWN_LAYERS
            if found != batch and certain:
                raise self._unlike(hidden)
        elif (a, b) == (tokens, batch) != (batch, tokens) and not self.attentions:
            if self._model_type is None:
                raise InputError(
                    f"the blocks are given {tuple(hidden.shape)} where {self._ids.name} is "
                    f"{(batch, tokens)}: either may have the batch first; {_SETTLE}"
                )
            self._decide(token_first=True, why=f"{self._ids.name} has these axes turned around")
        elif a == batch and self._model_type is not None:
            self._decide(token_first=False, why=f"the axes of {self._ids.name}")
        elif self._ids.are_ids and a != batch and b != batch:
            raise self._unlike(hidden)

    def _unlike(self, hidden: Tensor) -> ShapeError:
        assert self._ids is not None
        return ShapeError(
            f"the blocks are given {tuple(hidden.shape)}, but {self._ids.name} has "
            f"{self._ids.batch} samples of {self._ids.tokens} tokens, so which axis is the batch "
            f"is not known; {_SETTLE}"
        )

    def _refuse_unpadded(self, hidden: Tensor) -> None:
        ids = self._ids
        if ids is not None and ids.are_ids and ids.batch > 1 and self._said is None:
            raise ShapeError(
                f"the blocks are given {tuple(hidden.shape)}, without a batch axis, though "
                f"{ids.name} has {ids.batch} samples: they seem to be laid end to end. "
                "Trace one sample at a time, or switch that off (attn_implementation='sdpa')."
            )

    def _turned_square(
        self, attention: nn.MultiheadAttention, query: Tensor, hidden: Tensor
    ) -> bool:
        """As many samples as tokens: only equal numbers show whether the axes were turned."""
        straight, turned = torch.equal(query, hidden), torch.equal(query, hidden.transpose(0, 1))
        if straight != turned:
            return turned
        if attention.batch_first or hidden.shape[0] == 1:
            return False
        raise InputError(
            f"the blocks are given {tuple(hidden.shape)}, as many samples as tokens, and PyTorch's "
            "attention inside wants the tokens first, which the block may or may not see to "
            f"itself; {_SETTLE}"
        )

    def _decide(self, *, token_first: bool, why: str) -> None:
        if self.token_first is None:
            self.token_first = token_first
            self.words = f"{TOKEN_FIRST if token_first else BATCH_FIRST}: {why}"
