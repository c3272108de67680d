"""Which axis of the hidden states is the batch and which the tokens: specified, or inferred."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from rankscope.core.network import Network
from rankscope.core.tracing._attention import unmapped
from rankscope.core.tracing._hidden_states import OperationWatch, tensors_in
from rankscope.core.tracing._inputs import Ids
from rankscope.errors import InputError, ShapeError

Layout = Literal["batch token feature", "token batch feature"]
BATCH_FIRST, TOKEN_FIRST = get_args(Layout)
_SETTLE = f"specify it: layout={BATCH_FIRST!r} or layout={TOKEN_FIRST!r}."
_OWN_LAYERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)

_ALONG_AN_AXIS = frozenset(
    ("mean", "sum", "amax", "amin", "max", "min", "std", "var", "logsumexp", "cumsum", "softmax")
)
"""Operations that mix values along their ``dim``."""
_OF_EACH_TOKEN = frozenset(
    (
        "get", "size", "dim", "numel", "is_floating_point", "to", "type_as", "float", "double",
        "half", "bfloat16", "clone", "detach", "contiguous", "linear", "layer_norm", "rms_norm",
        "dropout", "relu", "gelu", "silu", "elu", "tanh", "sigmoid", "softplus", "leaky_relu",
        "add", "sub", "mul", "div", "truediv", "radd", "rsub", "rmul", "rtruediv", "rdiv", "iadd",
        "isub", "imul", "itruediv", "neg", "pow", "square", "sqrt", "rsqrt", "reciprocal", "exp",
        "log", "abs", "sin", "cos", "clamp", "zeros_like", "ones_like", "hash", "format", "repr",
    )
)  # fmt: skip
"""Operations that keep the order of the axes and mix values only along the last one."""


class _Sight(NamedTuple):
    """The numbers of samples and tokens that a part of the first block implies."""

    samples: int
    tokens: int
    why: str


class LayoutChoice(OperationWatch):
    """The order of the first two axes: specified, known for the model, or inferred.

    It is inferred from the first block: from PyTorch's attention or recurrence, whose layout is
    known, and from the axis along which other operations mix. ``words`` states the decision and
    the reason, once there is one.
    """

    def __init__(
        self,
        model: nn.Module,
        stack: Sequence[nn.Module],
        option: Layout | None,
        model_type: str | None,
        ids: Ids | None,
        inputs: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self._option, self._model_type, self._ids = option, model_type, ids
        self._is_ours, self._first = isinstance(model, Network), stack[0]
        tensors = [value for value in inputs.values() if isinstance(value, Tensor)]
        shapes = [tensor.shape for tensor in tensors if tensor.ndim and not tensor.is_nested]
        self._sizes = [{shape[0] for shape in shapes}, {n for shape in shapes for n in shape[:2]}]
        self._inputs: list[Tensor] = []
        self._sights: list[_Sight] = []
        self._turned: set[bool] = set()  # decisions that hold although both numbers are equal
        self._is_of_each_token = False  # whether all operations of the first block are
        self.token_first: bool | None = None
        self.words = ""
        if option is not None:
            self._decide(token_first=option == TOKEN_FIRST, why="as specified")
        elif self._is_ours:
            self._decide(token_first=False, why="a rankscope Network")
        elif type(self._first) in _OWN_LAYERS:
            attention: Any = self._first.self_attn
            self._decide(token_first=not attention.batch_first, why="a layer of PyTorch")
        elif model_type == "xlnet":
            self._decide(token_first=True, why="XLNet")

    @property
    def parts(self) -> list[nn.MultiheadAttention | nn.RNNBase]:
        """PyTorch's attention and recurrence inside the first block."""
        if self.token_first is not None:
            return []
        kinds = nn.MultiheadAttention | nn.RNNBase
        return [m for m in self._first.modules() if isinstance(m, kinds)]

    def look_at_state(self, hidden: Tensor) -> None:
        """Decide, if possible, before the first block runs on this state."""
        ids = self._ids
        if hidden.ndim == 2 and self._option is None:
            if ids is not None and ids.are_ids and ids.batch > 1:
                raise ShapeError(
                    f"the blocks take {tuple(hidden.shape)}, without a batch axis, although "
                    f"{ids.name} has {ids.batch} samples: they seem to be packed in one sequence. "
                    "Trace one sample at a time, or disable packing (attn_implementation='sdpa')."
                )
            if self._model_type is not None or (ids is not None and ids.tokens == len(hidden)):
                self._decide(token_first=False, why="a single sequence")
        if self._option is not None or self._is_ours or hidden.ndim != 3 or ids is None:
            return
        a, b = hidden.shape[:2]
        if self.token_first is not None:
            samples = b if self.token_first else a
            if samples != ids.batch and ids.are_ids and type(self._first) not in _OWN_LAYERS:
                raise self._unlike(hidden)
        elif self._model_type is not None:
            if (a, b) == (ids.tokens, ids.batch) != (ids.batch, ids.tokens) and not self.parts:
                self._decide(token_first=True, why=f"{ids.name} has these axes turned around")
            elif a == ids.batch:
                self._decide(token_first=False, why=f"the axes of {ids.name}")
            elif ids.are_ids and b != ids.batch:
                raise self._unlike(hidden)

    def look_at_operations(self, inputs: Iterable[Tensor]) -> None:
        """Observe the operations of the first block on these, if the layout is still unknown."""
        if self.token_first is None and self._model_type is None and not self.parts:
            self._inputs, self._is_of_each_token = list(inputs), True
            self.begin()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self._look(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _look(self, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> None:
        name, x = getattr(func, "__name__", "").strip("_"), args[0] if args else None
        if func is scaled_dot_product_attention:
            query = unmapped(named["query"] if x is None else x)
            self._see(math.prod(query.shape[:-2]), query.shape[-2], "attention in the first block")
        elif name in _ALONG_AN_AXIS and isinstance(x, Tensor) and not x.is_nested and x.ndim > 1:
            dim = named.get("dim", args[1] if len(args) > 1 else None)
            axes = [axis % x.ndim for axis in ([dim] if isinstance(dim, int) else dim or ())]
            self._look_along(name, x, axes)
        elif any(tensor.ndim > 2 for tensor in tensors_in((args, named))):  # not only weights
            mapped = name == "matmul" and args[1].ndim < 3
            of = getattr(getattr(func, "__self__", None), "__name__", "")  # of a property
            turned = name == "get" and of in ("T", "mT", "H", "mH")
            self._is_of_each_token &= mapped or (name in _OF_EACH_TOKEN and not turned)

    def _look_along(self, name: str, x: Tensor, axes: list[int]) -> None:
        if axes == [x.ndim - 1]:
            if name == "softmax" and x.shape[-1] == x.shape[-2]:
                self._see(math.prod(x.shape[:-2]), x.shape[-2], "attention in the first block")
        elif x.ndim == 3 and len(axes) == 1:
            self._see(
                x.shape[1 - axes[0]], x.shape[axes[0]], f"{name} along an axis in the first block"
            )
            if any(x is tensor for tensor in self._inputs):
                self._turned.add(axes[0] == 0)
        else:
            self._is_of_each_token = False

    def _see(self, samples: int, tokens: int, why: str) -> None:
        self._sights.append(_Sight(samples, tokens, why))
        self._is_of_each_token = False

    def look_at_part(self, part: Any, query: Any, hidden: Tensor | None) -> None:
        """Record the input of PyTorch's attention or recurrence, whose layout is known.

        ``hidden`` is the input of the block, if it is known which tensor that is.
        """
        if self.token_first is not None or not isinstance(query, Tensor) or query.is_nested:
            return
        kind = "attention" if isinstance(part, nn.MultiheadAttention) else "recurrence"
        why = f"the axes of the input of PyTorch's {kind} in the first block"
        if query.ndim == 2:
            self._see(1, len(query), why)
        elif query.ndim == 3:
            samples, tokens = query.shape[:2] if part.batch_first else query.shape[1::-1]
            self._see(samples, tokens, why)
            if hidden is not None and query.shape == hidden.shape and samples == tokens:
                # As many samples as tokens: only equal values show whether the axes were swapped.
                straight = torch.equal(query, hidden)
                if straight != torch.equal(query, hidden.transpose(0, 1)):
                    self._turned.add(straight != part.batch_first)

    def settle(self, hidden: Tensor) -> None:
        """Decide after the first block has run on this state."""
        self.end()
        self._inputs = []
        if self.token_first is None:  # which tensor it runs on may have been unknown
            self.look_at_state(hidden)
        if self.token_first is not None:
            return
        if 0 in hidden.shape:
            raise ShapeError(f"the blocks take {tuple(hidden.shape)}: there is no token.")
        if self._model_type is not None and all(part.batch_first for part in self.parts):
            self._decide(token_first=False, why="the usual order of Transformers")
        elif hidden.ndim in (2, 3) and not self._by_sights(hidden):
            self._by_ids(hidden)

    def _by_sights(self, hidden: Tensor) -> bool:
        """Decide by the evidence of the first block; False if there is none."""
        sights: dict[bool, str] = {}
        a, b = hidden.shape[:2]
        for sight in self._sights:
            if hidden.ndim == 2 and sight.tokens == a != b:
                return self._decide(token_first=False, why=f"a single sequence: {sight.why}")
            if hidden.ndim == 3 and a != b:
                if sight.tokens == b and sight.samples % a == 0:
                    sights[False] = sight.why
                elif sight.tokens == a and sight.samples % b == 0:
                    sights[True] = sight.why
        sights |= dict.fromkeys(self._turned, "the operations of the first block on its input")
        against = self._ids is not None and self._ids.are_ids and (a, b) == self._ids[1:3]
        if len(sights) > 1 or (True in sights and against and a != b):
            raise InputError(
                f"the blocks take {tuple(hidden.shape)}, and the first block and the inputs give "
                f"contradictory evidence about the order of its axes; {_SETTLE}"
            )
        for token_first, why in sights.items():
            samples = b if token_first else a
            if samples > 1 and self._sizes[0] and samples not in self._sizes[token_first]:
                raise self._unlike(hidden)
            self._decide(token_first=token_first, why=why)
        return bool(sights)

    def _by_ids(self, hidden: Tensor) -> None:
        """Decide by the input: integers are (batch, token); floats are, if no axis is mixed."""
        ids, (a, b) = self._ids, hidden.shape[:2]
        if ids is None or hidden.ndim == 2:
            raise self._unseen(hidden)
        batch, tokens = ids.batch, ids.tokens
        if (a, b) == (tokens, batch) != (batch, tokens):
            raise InputError(
                f"the blocks take {tuple(hidden.shape)}, and {ids.name} has shape "
                f"{(batch, tokens)}: either may have the batch first; {_SETTLE}"
            )
        is_part = not ids.are_ids and a < batch and b == tokens  # some of the samples
        if a != batch and not is_part:
            raise self._unlike(hidden)
        if ids.are_ids and batch == tokens > 1:
            raise InputError(
                f"{ids.name} has as many samples as tokens, {batch}, so it is unclear which axis "
                f"of the hidden states is the batch; {_SETTLE}"
            )
        is_alike = ids.are_ids and b == tokens != hidden.shape[2]
        if not is_alike and not self._is_of_each_token:
            raise self._unseen(hidden)
        self._decide(token_first=False, why=f"the axes of {ids.name}")

    def _unseen(self, hidden: Tensor) -> InputError:
        single = " (which takes two axes as the tokens of one sequence)" * (hidden.ndim == 2)
        square = hidden.ndim == 3 and hidden.shape[0] == hidden.shape[1]
        equal = ", as many samples as tokens" if square else ""
        return InputError(
            f"the blocks take {tuple(hidden.shape)}{equal}, and nothing in the first block "
            f"shows which axis is the tokens, so its layout is unknown; {_SETTLE[:-1]}{single}. "
            "The last axis must be the features."
        )

    def _unlike(self, hidden: Tensor) -> ShapeError:
        ids = self._ids
        samples = f"{sorted(self._sizes[0])} samples"
        if ids is not None:
            samples = f"{ids.batch} samples of {ids.tokens} tokens"
        return ShapeError(
            f"the blocks take {tuple(hidden.shape)}, but {ids.name if ids else 'the input'} "
            f"has {samples}, so it is unclear which axis is the batch; {_SETTLE}"
        )

    def _decide(self, *, token_first: bool, why: str) -> bool:
        if self.token_first is None:
            self.token_first = token_first
            self.words = f"{TOKEN_FIRST if token_first else BATCH_FIRST}: {why}"
        return True
