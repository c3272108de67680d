"""The transformer of rankscope: a stack of blocks, and its variants that share weights."""

import copy
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from typing import Self, cast

import torch
from torch import Tensor, nn

from rankscope.arguments import checked
from rankscope.core.checks import real_dtype, valid_mask, whole
from rankscope.core.masks import Mask, as_mask
from rankscope.core.names import ABLATIONS, NormPlace
from rankscope.core.network import _construct
from rankscope.core.network._block import Block
from rankscope.core.network._norms import NormKind
from rankscope.core.network._score_table import Described, Lent
from rankscope.core.network._spec import Spec
from rankscope.core.network._visibility import Visibility
from rankscope.core.weights import named_tensors, tensor_digests
from rankscope.errors import KindError, ShapeError, SpecError
from rankscope.numerals import cut

_MOST_LAYERS = 2**17
_STRUCTURE = (
    *("norm", "norm_place", "norm_eps", "parallel", "skip", "attention_skip", "mlp_skip"),
    *("mask", "layer_masks"),
)
"""Fields of a spec that determine how weights are used, not which weights there are."""


@checked
class Network(nn.Module):
    """A stack of blocks; maps the input of the first block to the output of the last.

    >>> import torch
    >>> from rankscope import Network, Spec
    >>> net = Network.random(Spec(2, 2, 8), seed=0)
    >>> net(torch.zeros(1, 3, 8)).shape
    torch.Size([1, 3, 8])

    There is no embedding, no final norm and no head: those belong to a model around the blocks.
    Variants (``without``, ``with_mask``, ``with_norm``, ``repeat``) are new networks that share
    this one's weights; nothing is changed in place.
    """

    def __init__(
        self, spec: Spec, blocks: Iterable[Block], *, seed: int | None = None, name: str = "Network"
    ) -> None:
        super().__init__()
        self.name = name
        self.spec = spec
        self.blocks = nn.ModuleList(blocks)
        if len(self.blocks) != spec.layers:
            raise SpecError(f"the spec has {spec.layers} layers, got {len(self.blocks)} blocks.")
        self.seed = seed

    @classmethod
    def random(cls, spec: Spec, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Self:
        """A network with weights drawn according to ``spec.init``; uses no global random state."""
        real_dtype("dtype", dtype)
        spec.check_drawable()
        whole = replace(spec, mlp_as="mlp", removed_heads=())
        network = cls(whole, _construct.random_blocks(whole, seed, dtype), seed=seed)
        return network if spec == whole else network._variant(spec)

    @property
    def seed(self) -> int | None:
        """The seed the weights were drawn with; None once any of them is another number."""
        is_drawn = self._seed is not None and self._drawn == tensor_digests(self._places())
        return self._seed if is_drawn else None

    @seed.setter
    def seed(self, seed: int | None) -> None:
        """Declare that the current weights were drawn with this seed."""
        self._seed = seed
        self._drawn = {} if seed is None else tensor_digests(self._places())

    @classmethod
    def from_matrices(
        cls,
        query_key: Tensor,
        values: Tensor,
        *,
        head_width: int,
        skip: bool | float = False,
        norm: NormKind = "none",
        mask: str | Mask | Tensor = "full",
    ) -> Self:
        """A network from the theory's own objects, ``W_QK`` and ``W_h = W_V,h W_O,h``.

        Both are ``(layer, head, width, width)``; logits are ``X W_QK Xᵀ / √head_width``.
        """
        structure = {"skip": skip, "norm": norm, "mask": mask}
        spec = _construct.matrix_spec(query_key, values, head_width, **structure)
        return cls(spec, _construct.matrix_blocks(spec, query_key, values))

    def forward(self, x: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """Run the blocks on ``(batch, token, feature)``; ``token_mask`` is False at padding."""
        return deque(self.states(x, token_mask), maxlen=1)[0]

    def states(self, x: Tensor, token_mask: Tensor | None = None) -> Iterator[Tensor]:
        """The output of each block in turn; previous states are not kept."""
        x, token_mask = self.prepare(x, token_mask)
        for block, visibility in self.sighted_blocks(x.shape[1], token_mask):
            x = block(x.to(block.device), visibility)
            yield x

    def sighted_blocks(
        self, tokens: int, token_mask: Tensor | None = None
    ) -> Iterator[tuple[Block, Visibility]]:
        """Each block in turn with its visibility, computed once per mask and device."""
        seen: dict[tuple[Mask, torch.device], Visibility] = {}
        for mask, block in zip(self.spec.masks, self._layers(), strict=True):
            key = mask, block.device
            if key not in seen:
                seen[key] = Visibility.of(mask, tokens, token_mask, block.device)
            yield block, seen[key]

    def without(self, *parts: str) -> Self:
        """The same network without some of its parts.

        >>> from rankscope import Network, Spec
        >>> net = Network.random(Spec(2, 2, 8), seed=0)
        >>> san = net.without("skip", "mlp")

        ``"mlp"`` removes the whole MLP step, with its skip and its norm; ``"mlp_weights"`` only its
        matrices, so that ``x + W₂ φ(W₁ x)`` becomes ``x + φ(x)``; ``"norm"`` every remaining norm
        of the tokens (norms inside a score, as in Qwen3, belong to the score); ``"skip"`` both.
        """
        unknown = [part for part in parts if part not in ABLATIONS]
        if unknown:
            raise SpecError(
                f"a network has no part {unknown[0]!r} to remove; "
                f"choose among {', '.join(ABLATIONS)}."
            )
        attention_skip, mlp_skip = self.spec.skips
        if {"skip", "attention_skip"} & set(parts):
            attention_skip = 0.0
        if {"skip", "mlp_skip"} & set(parts):
            mlp_skip = 0.0
        bare = "mlp_weights" in parts
        spec = replace(
            self.spec,
            attention_skip=attention_skip,
            mlp_skip=mlp_skip,
            mlp_ratio=0.0 if "mlp" in parts else self.spec.mlp_ratio,
            mlp_as="activation" if bare and self.spec.mlp_as == "mlp" else self.spec.mlp_as,
            norm="none" if "norm" in parts else self.spec.norm,
        )
        return self._variant(spec)

    def with_mask(self, mask: str | Mask | Tensor) -> Self:
        """The same network under another attention mask."""
        return self._variant(replace(self.spec, mask=as_mask(mask), layer_masks=None))

    def without_heads(self, *heads: tuple[int, int]) -> Self:
        """The same network with some heads removed, given as (layer, head) pairs counted from 0."""
        return self._variant(replace(self.spec, removed_heads=(*self.spec.removed_heads, *heads)))

    def with_identity_mlp(self) -> Self:
        """The same network with each MLP replaced by the identity; norm and skip stay.

        ``without("mlp")`` removes the whole step.
        """
        return self._variant(replace(self.spec, mlp_as="identity"))

    def with_norm(self, norm: NormKind, *, place: NormPlace | None = None) -> Self:
        """The same network with another norm, or the norm in another place.

        Gains and biases are shared where both norms have them; others start at one and zero.
        """
        return self._variant(
            replace(self.spec, norm=norm, norm_place=place or self.spec.norm_place)
        )

    def with_structure(self, spec: Spec) -> Self:
        """The same weights in blocks of another structure: skips, norms, masks, parallel parts.

        >>> from dataclasses import replace
        >>> from rankscope import Network, Spec
        >>> net = Network.random(Spec(2, 2, 8), seed=0)
        >>> net.with_structure(replace(net.spec, skip=0.5, norm_place="post")).spec.skips
        (0.5, 0.5)

        Changes that need other weights (another width, more heads) raise an error.
        """
        for name in (field.name for field in fields(spec) if field.name not in _STRUCTURE):
            if getattr(spec, name) != getattr(self.spec, name):
                raise SpecError(
                    f"{name}={getattr(spec, name)!r} needs other weights than those of "
                    f"{self.name}; only {', '.join(_STRUCTURE)} can be changed on them."
                )
        return self._variant(spec)

    def repeat(self, times: int) -> Self:
        """The stack of blocks run ``times`` times in a row, with the same weights each time."""
        whole("times", times, least=1, error=SpecError)
        if times * self.spec.layers > _MOST_LAYERS:
            raise SpecError(
                f"repeat({times}) makes {times * self.spec.layers} layers; at most "
                f"{_MOST_LAYERS} are supported."
            )
        masks = self.spec.layer_masks
        heads = [
            (layer + lap * self.spec.layers, head)
            for lap in range(times)
            for layer, head in self.spec.removed_heads
        ]
        spec = replace(
            self.spec,
            layers=self.spec.layers * times,
            layer_masks=None if masks is None else masks * times,
            removed_heads=tuple(heads),
        )
        return self._sharing(type(self)(spec, self._layers() * times, name=self.name))

    def double(self) -> Self:
        """A float64 copy; unlike most modules' ``double`` it leaves this network as it is."""
        return copy.deepcopy(self).to(torch.float64)

    def float(self) -> Self:
        """A float32 copy; this network is unchanged."""
        return copy.deepcopy(self).to(torch.float32)

    def __repr__(self) -> str:
        return f"{self._title()}: {cut(self.spec.describe(), 500)}"

    def _repr_html_(self) -> str:
        from rankscope.show.display import card, paragraph

        return card(self._title(), paragraph(self.spec.describe()))

    def _title(self) -> str:
        drawn = self.seed
        seed = "" if drawn is None else f", seed {drawn}"
        dtype = next(self.parameters()).dtype
        return f"{self.name}{seed}" + (f", {dtype}" if dtype != torch.float32 else "")

    def _layers(self) -> list[Block]:
        return cast(list[Block], list(self.blocks))

    def _variant(self, spec: Spec) -> Self:
        """A network of another structure on the same parts; shared blocks stay shared."""
        made: dict[tuple[int, frozenset[int]], Block] = {}
        blocks = []
        for layer, block in enumerate(self._layers()):
            removed = frozenset(head for at, head in spec.removed_heads if at == layer)
            if (id(block), removed) not in made:
                made[id(block), removed] = _construct.rebuild(
                    spec, block, removed=removed, same_norm=spec.norm == self.spec.norm
                )
            blocks.append(made[id(block), removed])
        return self._sharing(type(self)(spec, blocks, name=self.name))

    def _sharing(self, variant: Self) -> Self:
        """A variant with the weights of this network; new norms start at one and zero."""
        variant._seed = self._seed
        if self._seed is None:
            return variant
        mine: dict[int, set[str]] = defaultdict(set)
        for name, tensor in self._places().items():
            mine[id(tensor)].add(self._drawn.get(name, ""))
        theirs = variant._places()
        fresh = {name: tensor for name, tensor in theirs.items() if id(tensor) not in mine}
        shared = {name: mine[id(tensor)] for name, tensor in theirs.items() if name not in fresh}
        # One tensor used twice where two were drawn is not what the seed gives: no digest fits it.
        drawn = {name: min(some) if len(some) == 1 else "" for name, some in shared.items()}
        variant._drawn = {**drawn, **tensor_digests(fresh)}
        return variant

    def _places(self) -> dict[str, Tensor]:
        """``named_tensors``, visiting each block once, however often it runs."""
        inside = {block: named_tensors(block) for block in dict.fromkeys(self._layers())}
        return {
            f"blocks.{layer}.{name}": tensor
            for layer, block in enumerate(self._layers())
            for name, tensor in inside[block].items()
        }

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """All casts and moves go through here; the seed stays valid in the new dtype."""
        seed = self.seed
        apply_all = cast("Callable[..., Self]", super()._apply)
        moved = apply_all(fn, recurse)
        moved.seed = seed
        return moved

    def is_causal(self, tokens: int = 8, device: torch.device | None = None) -> bool:
        """Whether the first token sees only itself in every layer."""
        place = torch.device("cpu") if device is None else device
        seen = [Visibility.of(mask, tokens, None, place) for mask in set(self.spec.masks)]
        return all(bool((sight.uniform(torch.float64)[..., 0, 0] == 1).all()) for sight in seen)

    def prepare(self, x: Tensor, token_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Check the input and set padding to zero."""
        self.check(x)
        if token_mask is None:
            return x, None
        token_mask = valid_mask(token_mask, tuple(x.shape[:-1])).to(x.device)
        return torch.where(token_mask.unsqueeze(-1), x, x.new_zeros(())), token_mask

    def check(self, x: Tensor) -> None:
        """Raise unless ``x`` is a valid input of this network."""
        fits = isinstance(x, Tensor) and x.ndim == 3 and x.shape[-1] == self.spec.width
        if not fits or 0 in x.shape:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ShapeError(
                f"the network takes (batch, token, feature={self.spec.width}), got {got}; "
                "a single sequence needs a batch axis: x.unsqueeze(0)."
            )
        dtype = next((p.dtype for p in self.parameters()), x.dtype)
        if x.dtype != dtype:
            raise KindError(
                f"the input is {x.dtype}, the network {dtype}; "
                "cast one of them: x.to(dtype), or network.double()."
            )


def drawable(network: "Network") -> Spec:
    """The spec of a network in a form from which random networks can be drawn.

    For a loaded model the score of the first layer is used (positions are not weights), on the CPU,
    where random networks are drawn.
    """
    spec = network.spec
    spec.check_drawable()
    if not isinstance(spec.scores, Described):
        return spec
    block = cast(Block, network.blocks[0])
    first = block.attention.scores
    if block.device.type != "cpu":
        first = copy.deepcopy(first).cpu()
    return replace(spec, scores=Lent(str(spec.scores), first))
