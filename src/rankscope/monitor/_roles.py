"""What each matrix of a layer does: make queries, keys or values, or belong to the MLP.

The block says the layer, the path inside the block the role. Where queries, keys and values are
stored in one matrix, the layouts below distinguish their outputs; a matrix whose layout
is not known is marked so, and nothing is computed from it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from torch import nn

from rankscope.core.tracing import part_of

Part = Literal["query", "key", "value", "fused", "unclear", "MLP", "other"]
_NAMES: Final[Mapping[Part, re.Pattern[str]]] = {
    "query": re.compile(
        r"(q|query|q_proj|q_lin|q_linear|query_proj|[Ww]_?q|to_q|to_query|linear_q|project_q"
        r"|projection_query|q_head|q_a_proj|q_b_proj)(_weight)?"
    ),
    "key": re.compile(
        r"(k|key|k_proj|k_lin|k_linear|key_proj|[Ww]_?k|to_k|to_key|linear_k|project_k"
        r"|projection_key|k_head)(_weight)?"
    ),
    "value": re.compile(
        r"(v|value|v_proj|v_lin|v_linear|value_proj|[Ww]_?v|to_v|to_value|linear_v|project_v"
        r"|projection_value|v_head)(_weight)?"
    ),
    "fused": re.compile(
        r"((attn_)?qkv|qkv_proj|qkv_linear|Wqkv|to_qkv|c_attn|att_proj|W_pack|query_key_value"
        r"|in_proj)(_weight)?"
    ),
    "unclear": re.compile(
        r"kv|to_kv|linear_kv|kv_proj|kv_a_\w+|kv_b_proj|wqkv|key_value|query_key"
    ),
}
"""What projections of attention are called."""
_CROSS: Final = re.compile(r"cross|enc_?dec_?att|encoder_att|enc_att|src_att", re.IGNORECASE)
"""Attention to another sequence."""
_MLP: Final = re.compile(r"(^|\.)(linear[12]|lin[12]|DenseReluDense|w[123io]|wi_[01])(\.|$)")
"""Names of MLP matrices in addition to those that ``part_of`` knows."""
_AFTER_MLP: Final = re.compile(r"^output\.")
"""The second matrix of the MLP in BERT's blocks, beside ``intermediate``."""
_HEADS: Final = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")
_GROUPS: Final = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv", "kv_heads")
_WIDTHS: Final = ("head_dim", "attention_head_size", "head_size")
_BY_HEAD: Final = (
    "Bloom", "GPTNeoX", "Persimmon", "DisentangledSelfAttention", "MiniMaxLightning",
)  # fmt: skip
"""Classes of attention that store query, key and value of one head after another."""


@dataclass(frozen=True)
class Fused:
    """Where the outputs of a matrix of queries, keys and values belong.

    The outputs, on ``axis``, are groups of ``size``; in each of them ``values`` are the places of
    values, ``queries_keys`` those of queries and keys. Other places are neither (a gate).
    """

    axis: int
    size: int
    queries_keys: tuple[tuple[int, int], ...]
    values: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Role:
    """What a parameter is: its layer (None outside the blocks), its part, and how it is fused."""

    layer: int | None = None
    part: Part = "other"
    path: str = ""
    fused: Fused | None = None


class Roles:
    """The role of every parameter of a model, by the id of the parameter.

    ``complete`` are the layers in which queries, keys and values are all known.
    """

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        self._roles: dict[int, Role] = {}
        parts: dict[int, set[Part]] = {}
        for layer, block in enumerate(blocks, start=1):
            for parameter, role in _roles_in(block, layer):
                known = self._roles.setdefault(id(parameter), role)
                if known.layer == layer and known.part != role.part:
                    # One matrix under several names, such as views of a fused matrix.
                    self._roles[id(parameter)] = Role(layer, "unclear", known.path)
                # A block or a matrix that layers share counts for the first of them.
        for role in self._roles.values():
            if role.layer is not None:
                parts.setdefault(role.layer, set()).add(role.part)
        self.complete = frozenset(
            layer
            for layer, present in parts.items()
            if "unclear" not in present
            and ("fused" in present or {"query", "key", "value"} <= present)
        )

    def of(self, parameter: object) -> Role:
        """The role of a parameter; outside the blocks, none."""
        return self._roles.get(id(parameter), Role())

    def unclear(self) -> dict[int, str]:
        """The path of a matrix whose queries, keys and values cannot be told apart, by layer."""
        return {
            role.layer: role.path
            for role in self._roles.values()
            if role.part == "unclear" and role.layer is not None
        }


def _roles_in(block: nn.Module, layer: int) -> Iterator[tuple[nn.Parameter, Role]]:
    paths = [path for path, _ in block.named_parameters()]
    plain_bert = any(path.startswith("intermediate.") for path in paths)
    beside = any("self_attn." in path for path in paths)
    for path, parameter in block.named_parameters(remove_duplicate=False):
        if parameter.ndim < 2 or "bias" in path:
            continue
        part = _attention_part(path, beside=beside)
        if part is None:
            is_mlp = part_of(path) == "MLP" or (
                part_of(path) is None
                and (_MLP.search(path) or (plain_bert and _AFTER_MLP.search(path)))
            )
            yield parameter, Role(layer, "MLP" if is_mlp else "other", path)
        elif part == "fused":
            fused = _layout(block, path, parameter)
            yield parameter, Role(layer, "fused" if fused else "unclear", path, fused)
        else:
            yield parameter, _projection(block, layer, path, parameter, part)


def _attention_part(path: str, *, beside: bool) -> Part | None:
    """What a matrix makes; None for one that is not of self-attention or makes none of it."""
    if part_of(path) in ("MLP", "mixer"):
        return None
    if _CROSS.search(path) or (beside and "multihead_attn." in path):
        return "other"  # PyTorch's decoder calls its cross-attention multihead_attn
    for name in reversed(path.split(".")):
        for part, names in _NAMES.items():
            if names.fullmatch(name):
                return part
    return None


def _projection(
    block: nn.Module, layer: int, path: str, parameter: nn.Parameter, part: Part
) -> Role:
    """A matrix of queries, keys or values alone; queries may stand beside gates (Qwen3-Next)."""
    numbers = _Numbers(block, path)
    heads, width = numbers.first(_HEADS), numbers.first(_WIDTHS)
    own = isinstance(numbers.module, nn.Linear) and path.endswith(".weight")
    if part == "query" and own and heads and width and len(parameter) == 2 * heads * width:
        return Role(layer, part, path, Fused(0, 2 * width, ((0, width),), ()))
    return Role(layer, part, path)


class _Numbers:
    """Numbers that the modules around a parameter, or their configurations, state."""

    def __init__(self, block: nn.Module, path: str) -> None:
        names = path.split(".")[:-1]
        around = [block.get_submodule(".".join(names[:k])) for k in range(len(names), -1, -1)]
        self.module = around[0]
        """The module that holds the parameter."""
        self.classes = [type(module).__name__ for module in around]
        self._sources: list[Any] = []
        for module in around:
            self._sources += [module, getattr(module, "config", None)]

    def stated(self, name: str) -> Any:
        """An attribute of the innermost module or configuration that has it."""
        values = (getattr(source, name, None) for source in self._sources)
        return next((value for value in values if value is not None), None)

    def first(self, names: Sequence[str]) -> int:
        """The innermost of some whole numbers that is stated; 0 if none is."""
        values = (getattr(source, name, None) for source in self._sources for name in names)
        return next((value for value in values if isinstance(value, int) and value > 0), 0)

    def of_class(self, *prefixes: str) -> bool:
        return any(name.startswith(prefixes) for name in self.classes)


def _layout(block: nn.Module, path: str, parameter: nn.Parameter) -> Fused | None:
    """Which outputs of a fused matrix are values; None if this is not known for certain."""
    numbers = _Numbers(block, path)
    module, (*_, holder, name) = numbers.module, ("", *path.split("."))
    whole = name == "weight" and (_NAMES["fused"].fullmatch(holder) or holder == "base_layer")
    turned = type(module).__name__ == "Conv1D"
    if parameter.ndim != 2 or not (
        (whole and (turned or isinstance(module, nn.Linear)))
        or (name == "in_proj_weight" and isinstance(module, nn.MultiheadAttention))
    ):
        return None  # an adapter, or another factor of the matrix
    outputs, inputs = parameter.shape[::-1] if turned else parameter.shape
    axis, heads = int(turned), numbers.first(_HEADS)
    groups = numbers.first(_GROUPS)
    if numbers.of_class("CodeGen"):  # four parts of queries, values and keys, in this order
        third = outputs // 12
        return Fused(axis, 3 * third, ((0, third), (2 * third, 3 * third)), ((third, 2 * third),))
    if numbers.of_class(*_BY_HEAD) or (
        numbers.of_class("GPTBigCode") and not numbers.stated("multi_query")
    ):
        return _grouped(axis, outputs, heads, heads, heads)
    if numbers.of_class("Falcon"):
        if numbers.stated("new_decoder_architecture"):
            return _grouped(axis, outputs, heads, groups, groups)
        if numbers.stated("multi_query"):
            return _grouped(axis, outputs, heads, 1, 1)
        return _grouped(axis, outputs, heads, heads, heads)
    if "query_key_value" in path or holder == "in_proj":
        return None  # models differ, and the name does not say
    if groups and heads:
        return _grouped(axis, outputs, heads, groups, 1)
    stated = 3 * heads * numbers.first(_WIDTHS)
    return _grouped(axis, outputs, 1, 1, 1) if outputs in (3 * inputs, stated) else None


def _grouped(axis: int, outputs: int, heads: int, key_heads: int, groups: int) -> Fused | None:
    """Queries, keys and values one after another, in each of some groups."""
    all_heads = heads + 2 * key_heads
    if not heads or not key_heads or not groups or outputs % all_heads or all_heads % groups:
        return None
    size = outputs // groups
    values = size - key_heads // groups * (outputs // all_heads)
    return Fused(axis, size, ((0, values),), ((values, size),))
