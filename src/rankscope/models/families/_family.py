"""What a family is: a description of an architecture, mostly empty, and how it becomes a network.

A block is recognised from the calls inside it (``rankscope.models.recognition``), so a description
only says what the numbers cannot: unusual names, how the library initialises, which options are not
converted.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from textwrap import shorten
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rankscope.arguments import checked
from rankscope.core.network import Block, Described, Network, Scores, Spec, norm_rule
from rankscope.core.tracing import calls_inside, evaluating, find_blocks
from rankscope.errors import (
    BlocksNotFoundError,
    InputError,
    KindError,
    RankscopeError,
    UnsupportedModelError,
)
from rankscope.models.recognition import (
    RECOGNISED,
    ROLES,
    AttentionParts,
    DescribedScores,
    Habits,
    Observed,
    Reading,
    RecognisedBlock,
    full_precision,
    observe,
    recognise,
    single_precision,
    telling_weights,
)

Answer = TypeVar("Answer")
Original = Any
"""A module of somebody else's, whose attributes only its family knows."""
_TOWERS = ("language_model", "text_model", "text_encoder")
"""Of several stacks of blocks, those that read text."""
_POSITIONS = re.compile(r"pos|wpe", re.IGNORECASE)


@checked
@dataclass(frozen=True)
class Family:
    """An architecture; only ``name`` is needed where all names in it are usual ones.

    >>> from rankscope.models.families import Family
    >>> family = Family("nanoGPT", layers="transformer.h", roles={"fused": "attn.c_attn"})

    ``model_types`` are the types that configurations of transformers state. ``body`` is the path
    of the module that turns inputs into hidden states (by default the base model, of an
    encoder-decoder its encoder), ``layers`` that of its blocks (by default found). ``roles`` name
    projections that have unusual names: ``query``, ``key``, ``value`` or ``fused``, and ``gate``,
    each by the end of its path in a block. ``scores`` gives the ways in which its scores may be
    computed, where they are none of the usual ones. ``expects`` are values of the configuration
    without which the model is refused. ``initialised`` gives the fields of the spec that say how
    the library draws weights. ``recognise`` takes a block apart by hand, for one that is made of
    no known parts. ``token_axis`` is that of the original's hidden states. ``example`` makes a
    small model for ``check``.
    """

    name: str
    model_types: tuple[str, ...] = ()
    body: str = ""
    layers: str | Callable[[Original], Sequence[nn.Module]] = ""
    roles: Mapping[str, str] = field(default_factory=dict)
    scores: DescribedScores | None = None
    expects: Mapping[str, bool | int | float | str | None] = field(default_factory=dict)
    initialised: Callable[[Any], Mapping[str, Any]] | None = None
    recognise: Callable[[Observed, Original, Any], RecognisedBlock] | None = None
    token_axis: int = 1
    example: Callable[[], nn.Module] | None = None

    def __post_init__(self) -> None:
        unknown = set(self.roles) - set(ROLES)
        if unknown:
            raise InputError(
                f"{self.name}: {min(unknown)!r} is not a role of a projection; choose among "
                f"{', '.join(ROLES)}."
            )
        if isinstance(self.layers, nn.Module):  # callable, too
            raise KindError(f"{self.name}: layers is a module, expected a path or a function.")
        if self.token_axis not in (0, 1):
            raise InputError(f"{self.name}: token_axis={self.token_axis}, expected 0 or 1.")

    def asked(self, name: str, call: Callable[[], Answer]) -> Answer:
        """What a function of the description returns; whatever it raises becomes one sentence."""
        try:
            return call()
        except RankscopeError:
            raise
        except Exception as error:  # of code that is not ours
            reason = f"{type(error).__name__}: {error}".rstrip(".")
            raise InputError(f"{self.name}: its {name} failed ({reason}).") from error

    def body_of(self, model: Original) -> Original:
        """The module that turns token ids (or pixels) into hidden states."""
        if self.body:
            return submodule(model, self.body, "body")
        base: Original = getattr(model, "base_model", model)
        if not self.takes(base, getattr(base, "main_input_name", "input_ids")):
            base = model  # what is called its base is only its stack of blocks
        if getattr(config_of(base), "is_encoder_decoder", False) and hasattr(base, "encoder"):
            return base.encoder
        if hasattr(base, "decoder") and not hasattr(base, "encoder") and not _stacks(base):
            return base.decoder
        towers = [name for name in _TOWERS if isinstance(getattr(base, name, None), nn.Module)]
        return getattr(base, towers[0]) if towers else base

    def layers_of(self, body: Original) -> list[nn.Module]:
        """The original blocks in the order they run; a shared block stands there several times."""
        if callable(self.layers):
            blocks = self.asked("layers", lambda: list(self.layers(body)))  # type: ignore[operator]
            if not blocks or not all(isinstance(block, nn.Module) for block in blocks):
                raise InputError(f"{self.name}: its layers are {blocks!r:.100}, expected modules.")
            return blocks
        try:
            return find_blocks(body, self.layers or None)
        except BlocksNotFoundError as error:
            found = str(error).partition("; name ")[0].rstrip(".")
            raise UnsupportedModelError(
                f"{found}; to convert one, name the module around it (tower='vision_model'), or "
                "its path in a description (family=Family('own', layers='encoder.layers')); "
                "rankscope.trace works on modules without conversion."
            ) from None

    def batch_first(self, hidden: Tensor) -> Tensor:
        """Hidden states of the original as ``(batch, token, feature)``, and the other way round."""
        return hidden if self.token_axis == 1 else hidden.transpose(0, 1)

    def takes(self, body: Original, argument: str) -> bool:
        """Whether the original's forward pass has an argument of this name."""
        return argument in inspect.signature(body.forward).parameters

    def positions(self, body: Original, token_mask: Tensor) -> Tensor:
        """Position ids that count real tokens only, as the original counts them."""
        table = _position_table(body)
        start = getattr(table, "padding_idx", None)
        if start is not None:  # RoBERTa counts on from the padding index
            return token_mask.cumsum(-1) * token_mask + int(start)
        return (token_mask.cumsum(-1) - 1).clamp(min=0)

    def most_tokens(self, body: Original) -> int | None:
        """How many tokens the position table holds; None where positions have no table."""
        table = _position_table(body)
        if table is None:
            return None
        start = -1 if table.padding_idx is None else table.padding_idx
        return int(table.num_embeddings) - int(getattr(table, "offset", 0)) - start - 1

    def network(
        self, body: Original, arguments: Mapping[str, Any], token_mask: Tensor | None
    ) -> Network:
        """Our network on the original's parameters, recognised on a probe.

        Blocks that are shared in the original are shared here.
        """
        config, layers = config_of(body), self.layers_of(body)
        self._check(config)
        habits = Habits(RECOGNISED[next(body.parameters()).dtype])
        precise = {name: single_precision(value) for name, value in arguments.items()}
        run = partial(run_original, body, precise)
        made = []
        with (
            evaluating(body),
            torch.no_grad(),
            full_precision(),
            telling_weights(body, but=layers),
        ):
            with calls_inside(layers, telling_weights):  # one at a time: copies of all may not fit
                seen = observe(body, layers, run, token_mask, self.batch_first)
            _refuse_alike(seen[0].x, token_mask)
            for block in seen:
                with telling_weights(block.block):
                    made.append(self._taken_apart(block, body, config, habits))
        by_module = {block.block: one for block, one in zip(seen, made, strict=True)}
        read = [by_module[layer] for layer in layers]
        spec = self._spec(config, read, seen[0].x.shape[-1], shared=len(made) == 1)
        blocks = {
            id(one): Block(spec, attention=one.attention, mlp=one.mlp, norms=one.norms)
            for one in made
        }
        return Network(spec, [blocks[id(one)] for one in read])

    def _taken_apart(
        self, observed: Observed, body: Original, config: Any, habits: Habits
    ) -> RecognisedBlock:
        """One block in our parts, by hand or by its calls."""
        if self.recognise is None:
            scores = None if self.scores is None else self._listed_scores
            return recognise(observed, body, config, habits, roles=self.roles, scores=scores)
        made = self.asked("recognise", partial(self.recognise, observed, body, config))
        if not isinstance(made, RecognisedBlock):
            raise InputError(f"{self.name}: its recognise gives {made!r:.100}, no RecognisedBlock.")
        return made

    def _listed_scores(self, parts: AttentionParts) -> list[Reading[Scores]]:
        assert self.scores is not None
        readings = self.asked("scores", lambda: list(self.scores(parts)))  # type: ignore[misc]
        if not all(isinstance(reading, Reading) for reading in readings):
            raise InputError(f"{self.name}: its scores are {readings!r:.100}, expected readings.")
        return readings

    def _check(self, config: Any) -> None:
        nested = [getattr(config, name, None) for name in ("attn_config", "rope_parameters")]
        inner = {k: v for part in nested if part for k, v in _entries(part).items()}
        for name, supported in {**_UNSUPPORTED, **self.expects}.items():
            value = getattr(config, name, inner.get(name, supported))
            if value != supported:
                raise UnsupportedModelError(
                    f"{type(config).__name__}.{name}={value!r} is not converted (only "
                    f"{supported!r} is); rankscope.trace works on the model without conversion."
                )

    def _spec(self, config: Any, read: list[RecognisedBlock], width: int, *, shared: bool) -> Spec:
        """The structure of the blocks, which all of them share but for masks and scores."""
        first = read[0]
        for layer, block in enumerate(read, start=1):
            if _shape(block) != _shape(first):
                raise UnsupportedModelError(
                    f"layer {layer} is built in another way than layer 1 ({_shape(block)}, not "
                    f"{_shape(first)}); rankscope.trace works on the model without conversion."
                )
        attention, mlp = first.attention, first.mlp
        norms = [norm_rule(norm, torch.float64) for block in read for norm in block.norms.values()]
        rules = [rule for rule in norms if rule is not None]
        words = list(dict.fromkeys(block.words for block in read if block.words))
        projections = [attention.query, attention.value, attention.output]
        projections += [] if mlp is None else [mlp.up, mlp.down]
        fields: dict[str, Any] = {
            "head_width": attention.query.weight.shape[0] // attention.heads,
            "kv_heads": attention.kv_heads,
            "mlp_ratio": 0.0 if mlp is None else mlp.up.weight.shape[0] / width,
            "activation": "gelu" if mlp is None else mlp.activation,
            "gated": mlp is not None and mlp.gate is not None,
            "norm": "none" if not rules else "layer" if rules[0].centers else "rms",
            "norm_eps": rules[0].eps if rules else 1e-5,
            "layer_masks": [block.mask for block in read],
            "bias": any(projection.bias is not None for projection in projections),
            "shared_layers": shared and len(read) > 1,
            "scores": Described("; ".join(words)) if words else "dot",
            "score_scale": attention.scale,
            **first.fields,
        }
        drawn: dict[str, Any] = {"init": float(getattr(config, "initializer_range", None) or 0.02)}
        make = partial(Spec, len(read), attention.heads, width, undescribed=_undescribed(read))
        initialised = self.initialised
        if initialised is None:
            return make(**fields, **drawn)
        return self.asked("initialised", lambda: make(**{**fields, **drawn, **initialised(config)}))


_UNSUPPORTED = {
    "attention_type": "original_full",
    "encoder_attention_type": "full",
    "attention_chunk_size": None,
    "clip_qkv": None,
    "index_topk": None,
    "llama_4_scaling_beta": None,
}
"""Options under which attention changes in ways a short probe of small numbers does not show: with
the length of the text, or where queries, keys and values are large."""


def _refuse_alike(x: Tensor, token_mask: Tensor | None) -> None:
    """Refuse a probe on which several forms of attention would give the same outputs."""
    if token_mask is not None and token_mask.shape != x.shape[:2]:
        raise UnsupportedModelError(
            f"the mask of the input to compare on has shape {tuple(token_mask.shape)}, the hidden "
            f"states (batch, token) {tuple(x.shape[:2])}; is token_axis right?"
        )
    real = torch.ones(x.shape[:2], dtype=torch.bool) if token_mask is None else token_mask.cpu()
    samples = zip(x.cpu(), real, strict=True)
    most = max((len(torch.unique(sample[mine], dim=0)) for sample, mine in samples), default=0)
    if most < _LEAST_TOKENS:
        raise UnsupportedModelError(
            f"the probe has {most} different hidden states in a sample, on which masks and "
            f"positions cannot be told apart; give at least {_LEAST_TOKENS} different tokens."
        )


def _entries(part: Any) -> Mapping[str, Any]:
    """A nested part of a configuration as a mapping."""
    return part if isinstance(part, Mapping) else vars(part)


_LEAST_TOKENS = 4
"""Different tokens of a sample without which masks, positions and scales cannot be told apart."""


def run_original(body: Original, arguments: Mapping[str, Any]) -> Any:
    """Run an original on a probe of ours; whatever it raises becomes one sentence."""
    try:
        return body(**arguments)
    except Exception as error:  # of code that is not ours
        reason = shorten(f"{type(error).__name__}: {error}", 200, placeholder=" …").rstrip(".")
        given = ", ".join(arguments) or "no arguments"
        raise UnsupportedModelError(
            f"{type(body).__name__} does not run on {given} ({reason}); give an "
            "input that it runs on: rankscope.load(model, probe={...})."
        ) from error


def submodule(model: nn.Module, path: str, option: str) -> nn.Module:
    """The submodule at a path that somebody named, or an error that says what there is."""
    try:
        return model.get_submodule(path)
    except AttributeError:
        names = ", ".join(name for name, _ in model.named_children())
        raise InputError(f"{option}={path!r} is not in the model; it has {names}.") from None


def config_of(body: Original) -> Any:
    """A model's configuration; an empty one for a module that has none."""
    return getattr(body, "config", None) or SimpleNamespace()


def _stacks(body: nn.Module) -> bool:
    try:
        return bool(find_blocks(body))
    except BlocksNotFoundError:
        return False


def _position_table(body: nn.Module) -> Any:
    """The table of absolute positions, if there is one: an embedding that is named so."""
    for path, module in body.named_modules():
        if isinstance(module, nn.Embedding) and _POSITIONS.search(path):
            return module
    return None


def _shape(block: RecognisedBlock) -> str:
    """What all layers of a network must have in common, in words."""
    attention, mlp = block.attention, block.mlp
    width = attention.query.weight.shape[0] // attention.heads
    units = "no MLP" if mlp is None else f"an MLP with {mlp.activation}"
    place = f"{block.fields['norm_place']}-norm{', parallel' * block.fields['parallel']}"
    return (
        f"{attention.heads} heads of width {width}, {attention.kv_heads} for keys, {units}, {place}"
    )


def _undescribed(read: Sequence[RecognisedBlock]) -> Iterator[str]:
    """What a spec has no field for."""
    if any(block.attention.gate is not None for block in read):
        yield "gates on the output of attention"
    if any(block.mlp is not None and block.mlp.router is not None for block in read):
        yield "mixtures of experts"
    if any(block.attention.latent for block in read):
        yield "latent projections in attention"
    if any(block.scaled for block in read):
        yield "scaled branches"
    if len({(block.words, block.attention.scale) for block in read}) > 1:
        yield "scores that differ between layers"
    if len({0 if block.mlp is None else block.mlp.up.weight.shape[0] for block in read}) > 1:
        yield "MLPs of different widths"


_SIZES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"),
    "width": ("hidden_size", "n_embd", "d_model", "dim"),
    "units": ("intermediate_size", "n_inner", "d_ff", "encoder_ffn_dim", "hidden_dim", "d_inner"),
}
"""What configurations call their sizes."""


def outline(config: Any) -> Spec | None:
    """The size of a model by its configuration alone, for estimates; None if it does not say.

    Only the number of layers and heads, and the widths, are those of the model.
    """
    config = getattr(config, "text_config", config)
    sizes = {
        name: next((v for n in names if isinstance(v := getattr(config, n, None), int)), None)
        for name, names in _SIZES.items()
    }
    layers, heads, width = (sizes[name] for name in ("layers", "heads", "width"))
    if not layers or not heads or not width:
        return None
    units = sizes["units"] or 4 * width
    layers *= getattr(config, "inner_group_num", 1)
    return Spec(layers, heads, width, head_width=-(-width // heads), mlp_ratio=units / width)
