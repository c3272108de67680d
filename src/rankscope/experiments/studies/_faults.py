"""Tiny models of several families, and the faults that the zoo puts into them."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from rankscope.errors import InputError
from rankscope.process import require
from rankscope.streams import global_stream, stream

VOCABULARY: Final = 512
_SHAPE: Final = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}
_ENDS: Final[dict[str, Any]] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def make_model(family: str, layers: int, seed: int) -> nn.Module:
    """A tiny model of a family, with weights of about the size that trained ones have.

    Matrices are drawn with a standard deviation of about 0.8 over the root of the fan-in, a little
    larger or smaller in each; gains about one, biases about a tenth.
    """
    hf = require("transformers")
    hf.utils.logging.set_verbosity_error()
    shape: dict[str, Any] = {**_SHAPE, "num_hidden_layers": layers}
    makers: dict[str, Callable[[], nn.Module]] = {
        "bert": lambda: hf.BertModel(hf.BertConfig(**shape)),
        "roberta": lambda: hf.RobertaModel(hf.RobertaConfig(**shape)),
        "distilbert": lambda: hf.DistilBertModel(
            hf.DistilBertConfig(
                vocab_size=VOCABULARY, dim=48, n_layers=layers, n_heads=4, hidden_dim=96
            )
        ),
        "gpt2": lambda: hf.GPT2LMHeadModel(
            hf.GPT2Config(
                vocab_size=VOCABULARY, n_embd=48, n_layer=layers, n_head=4, n_positions=64, **_ENDS
            )
        ),
        "llama": lambda: hf.LlamaForCausalLM(
            hf.LlamaConfig(**shape, num_key_value_heads=2, **_ENDS)
        ),
        "qwen3": lambda: hf.Qwen3Model(
            hf.Qwen3Config(**shape, num_key_value_heads=2, head_dim=12, **_ENDS)
        ),
        "mistral": lambda: hf.MistralModel(
            hf.MistralConfig(**shape, num_key_value_heads=2, sliding_window=16, **_ENDS)
        ),
        "neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**shape, **_ENDS)),
        "t5": lambda: hf.T5EncoderModel(
            hf.T5Config(
                vocab_size=VOCABULARY, d_model=48, d_kv=12, d_ff=96, num_layers=layers, num_heads=4
            )
        ),
        "xlnet": lambda: hf.XLNetModel(
            hf.XLNetConfig(vocab_size=VOCABULARY, d_model=48, n_layer=layers, n_head=4, d_inner=96)
        ),
    }
    if family not in makers:
        raise InputError(f"there is no family {family!r}; choose {', '.join(makers)}.")
    with global_stream(seed, "zoo", family):
        model = makers[family]().eval()
    generator = stream(seed, "zoo", "weights", family)
    with torch.no_grad():
        for path, module in model.named_modules():
            if isinstance(module, nn.Embedding):
                if family != "t5":
                    size = 0.15 if "pos" in path or "wpe" in path else 0.5
                    module.weight *= size / module.weight.std()
                continue
            for parameter in module.parameters(recurse=False):
                _draw(parameter, generator)
    return model


def _draw(parameter: Tensor, generator: torch.Generator) -> None:
    noise = torch.randn(parameter.shape, generator=generator)
    wobble = math.exp(0.2 * float(torch.randn((), generator=generator)))
    if parameter.ndim >= 2:
        # XLNet keeps its projections as (width, head, head width).
        fan_in = parameter.shape[0 if parameter.ndim == 3 else -1]
        parameter.copy_(noise * 0.8 * wobble / math.sqrt(fan_in))
    elif float(parameter.abs().max()) > 0:  # a gain
        parameter.copy_((0.1 * noise).exp() * wobble)
    else:
        parameter.copy_(0.1 * noise)


class Fault(NamedTuple):
    """What is done to which weights of a layer, and by which figures it may be known.

    ``roles`` are changed one after another, each by ``change(value, generator)``. A model that
    lacks one of them cannot have the fault. A layer of 0 is the embeddings.
    """

    roles: Mapping[str, Callable[[Tensor, torch.Generator], Tensor]]
    figures: tuple[str, ...]
    embeddings: bool = False
    after_sum: bool = False
    """Whether it takes a norm after the sum: before a branch, it would take nothing away."""


def _times(factor: float) -> Callable[[Tensor, torch.Generator], Tensor]:
    return lambda value, _generator: value * factor


def _random(scale: float) -> Callable[[Tensor, torch.Generator], Tensor]:
    def change(value: Tensor, generator: torch.Generator) -> Tensor:
        return value + scale * torch.randn(value.shape, generator=generator)

    return change


def _rank_one(value: Tensor, generator: torch.Generator) -> Tensor:
    left, right = (torch.randn(size, generator=generator) for size in value.shape)
    return torch.outer(left, right) * float(value.square().mean().sqrt())


def _one_row(value: Tensor, _generator: torch.Generator) -> Tensor:
    first_row = torch.zeros_like(value)
    first_row[0] = value[0]
    return first_row


def _as_drawn(value: Tensor, generator: torch.Generator) -> Tensor:
    return 0.02 * torch.randn(value.shape, generator=generator)


def _half_zero(value: Tensor, _generator: torch.Generator) -> Tensor:
    changed = value.clone()
    changed[: len(value) // 2] = 0
    return changed


def _one_large(value: Tensor, _generator: torch.Generator) -> Tensor:
    changed = value.clone()
    changed[3] *= 1000
    return changed


def _common_row(value: Tensor, generator: torch.Generator) -> Tensor:
    size = float(value.square().mean().sqrt())
    return value + 30 * size * torch.randn(value.shape[-1], generator=generator)


def _equal(value: Tensor, _generator: torch.Generator) -> Tensor:
    return value[5:6].expand_as(value).clone()


_ZERO: Final = _times(0.0)
FAULTS: Final[dict[str, Fault]] = {
    "logits × 400": Fault({"query": _times(20.0), "key": _times(20.0)}, ("size",)),
    "attention norm's gain × 0.001": Fault({"attention gain": _times(1e-3)}, ("gain",)),
    "MLP norm's gain × 0.001": Fault({"mlp gain": _times(1e-3)}, ("gain",)),
    "gain × 0.15, bias": Fault(
        {"mlp gain": _times(0.15), "mlp norm bias": _random(1.0)},
        ("gain", "bias"),
        after_sum=True,
    ),
    "constant values, output × 50": Fault(
        {"value": _ZERO, "value bias": _random(1.0), "output": _times(50.0)},
        ("size", "bias", "directions"),
    ),
    "identity": Fault(
        dict.fromkeys(("output", "output bias", "down", "down bias"), _ZERO),
        ("size",),
    ),
    "values zero": Fault({"value": _ZERO, "value bias": _ZERO, "output bias": _ZERO}, ("size",)),
    "attention output zero": Fault({"output": _ZERO, "output bias": _ZERO}, ("size",)),
    "MLP output zero": Fault({"down": _ZERO, "down bias": _ZERO}, ("size",)),
    "attention output × 50": Fault({"output": _times(50.0)}, ("size",)),
    "MLP output × 50": Fault({"down": _times(50.0)}, ("size",)),
    "values of rank one": Fault({"value": _rank_one}, ("directions",)),
    "one value row left": Fault({"value": _one_row}, ("dead rows", "directions", "size")),
    "common direction": Fault({"down bias": _random(10.0)}, ("bias",)),
    "common direction of attention": Fault({"output bias": _random(10.0)}, ("bias",)),
    "queries and keys zero": Fault(
        dict.fromkeys(("query", "query bias", "key", "key bias"), _ZERO), ("size",)
    ),
    "half of the values zero": Fault(
        {"value": _half_zero, "value bias": _half_zero}, ("dead rows", "directions", "size")
    ),
    "MLP never active": Fault({"up bias": lambda value, _: torch.full_like(value, -50)}, ("bias",)),
    "one gain × 1000": Fault({"mlp gain": _one_large}, ("directions",)),
    "bias of a norm": Fault({"mlp norm bias": _random(10.0)}, ("bias",)),
    "attention as drawn": Fault(
        dict.fromkeys(("query", "key", "value", "output"), _as_drawn), ("size",)
    ),
    "common word embedding": Fault({"words": _common_row}, ("equal rows",), embeddings=True),
    "word embeddings of rank one": Fault({"words": _rank_one}, ("directions",), embeddings=True),
    "equal word embeddings": Fault({"words": _equal}, ("equal rows",), embeddings=True),
    "tiny word embeddings": Fault({"words": _times(1e-3)}, ("size",), embeddings=True),
}
OPTIONAL: Final = ("query bias", "key bias", "value bias", "output bias", "down bias")
"""Roles that some architectures lack, which are left out if others are there to be changed."""
