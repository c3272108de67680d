"""Routers of mixtures of experts: how many tokens each expert gets."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from rankscope.core.tracing import TemporaryChanges

_NAME: Final = re.compile(r"(.*\.)?(gate|wg|\w*router\w*)")
_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN: Final = ("top_k", "num_experts_per_tok", "num_experts_per_token", "moe_k", "k")


class Router(NamedTuple):
    """A module that chooses experts: how many there are, and how many each token gets."""

    module: nn.Module
    experts: int
    chosen: int


def find_routers(blocks: Sequence[nn.Module]) -> dict[int, Router]:
    """The router of each block that has one, by the id of the block.

    It has the usual name, and it or a module around it states the number of experts. Of several,
    one inside another, the outermost counts.
    """
    routers: dict[int, Router] = {}
    for block in blocks:
        for path, module in block.named_modules():
            if id(block) not in routers and path and _NAME.fullmatch(path):
                names = path.split(".")
                around = [
                    block.get_submodule(".".join(names[:k])) for k in range(len(names), 0, -1)
                ]
                experts, chosen = _stated(around, _EXPERTS), _stated(around, _CHOSEN)
                if experts > 1:
                    routers[id(block)] = Router(module, experts, max(chosen, 1))
    return routers


class RouterWatch:
    """Counts the tokens of each expert while a model runs, on its device."""

    def __init__(self, blocks: Sequence[nn.Module], routers: Mapping[int, Router]) -> None:
        self._blocks, self._routers = blocks, routers
        self._layer = 0
        self._token_mask: Tensor | None = None
        self._counts: dict[int, Tensor] = {}

    def listen(self, changes: TemporaryChanges, token_mask: Tensor | None) -> None:
        """Register all hooks; padding (``token_mask`` False) is not counted."""
        self._layer, self._counts, self._token_mask = 0, {}, token_mask
        for block in dict.fromkeys(self._blocks):
            changes.before(block, self._begin)
            if (router := self._routers.get(id(block))) is not None:
                changes.after(router.module, self._count(router))

    def counts(self) -> dict[int, Tensor]:
        """The number of tokens of each expert by layer, on the host."""
        return {layer: counts.double().cpu() for layer, counts in self._counts.items()}

    def _begin(self, *_: Any) -> None:
        self._layer += 1

    def _count(self, router: Router) -> Any:
        def count(_module: nn.Module, _args: object, output: Any) -> None:
            chosen = _chosen_experts(output, router)
            if chosen is None:
                return
            mask, weight = self._token_mask, torch.ones_like(chosen, dtype=torch.float32)
            if mask is not None and mask.numel() == len(chosen):
                weight *= mask.to(weight.device).reshape(-1, 1)
            counts = torch.zeros(router.experts, device=chosen.device)
            counts.index_add_(0, chosen.flatten(), weight.flatten())
            self._counts[self._layer] = self._counts.get(self._layer, 0) + counts

        return count


def _stated(modules: Sequence[nn.Module], names: Sequence[str]) -> int:
    """A whole number that the innermost of some modules, or its configuration, states; 0: none."""
    for module in modules:
        for source in (module, getattr(module, "config", None)):
            for name in names:
                value = getattr(source, name, None)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
    return 0


def _chosen_experts(output: Any, router: Router) -> Tensor | None:
    """The experts of each token, ``(token, expert)``: stated in the output, or the largest logits.

    None if the output shows neither.
    """
    outputs = output if isinstance(output, tuple | list) else (output,)
    tensors = [tensor.detach() for tensor in outputs if isinstance(tensor, Tensor)]
    for tensor in tensors:
        if tensor.dtype in (torch.int64, torch.int32) and tensor.ndim > 1:
            return tensor.flatten(0, -2).long()
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.shape[-1] == router.experts:
            return tensor.flatten(0, -2).topk(min(router.chosen, router.experts)).indices
    return None
