"""Every architecture of Transformers as a tiny random model, with inputs that it runs on.

>>> model = build("bert", seed=0)
>>> model(**inputs(model)).last_hidden_state.shape
torch.Size([2, 12, 32])

A configuration is shrunk field by field: ``SIZES`` says what a field of that name becomes wherever
it occurs, and ``FIELDS`` what one model type needs beside that, also as part of another model.
``INPUTS`` and ``ARGUMENTS`` do the same for the arguments of ``forward``.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from .arguments import ARGUMENTS, INPUTS
from .configurations import FIELDS, SIZES

LAYERS = 3


def names() -> list[str]:
    """All model types that have a base model, in alphabetical order."""
    return sorted(MODEL_MAPPING_NAMES)


def build(name: str, seed: int) -> nn.Module:
    """A tiny model in evaluation mode in which no weight, bias or gain is trivial."""
    hf.utils.logging.set_verbosity_error()
    kind = hf.CONFIG_MAPPING[name]
    config = kind(**_shrink(kind()))
    classes = hf.MODEL_MAPPING[kind]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = (classes[0] if isinstance(classes, tuple) else classes)(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.is_floating_point():
                    parameter.copy_(torch.randn_like(parameter) * 0.25)
                    if parameter.ndim == 1:
                        parameter += 0.5
    return model


def _shrink(config: hf.PreTrainedConfig) -> dict[str, Any]:
    """The fields of a small configuration of the same type."""
    fields: dict[str, Any] = {}
    for name, value in config.to_dict().items():
        part = getattr(config, name, None) if isinstance(value, dict) else None
        if isinstance(part, hf.PreTrainedConfig):
            fields[name] = {**_shrink(part), "model_type": part.model_type}
        elif name == "layer_types" and value:
            kinds = list(dict.fromkeys(value)) * LAYERS
            fields[name] = kinds[:LAYERS]
        elif name == "out_features" and "depths" in config.to_dict():
            fields[name] = value  # a detector takes them by number
        elif name in SIZES:
            fields |= _resize(name, value)
    return _merge(fields, FIELDS.get(config.model_type, {}))


def _resize(name: str, value: Any) -> dict[str, Any]:
    if type(value) is int:
        return {name: SIZES[name]}
    if isinstance(value, list | tuple) and all(type(one) is int for one in value):
        return {name: [SIZES[name]] * len(value)}
    return {}


def _merge(fields: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(fields)
    for name, value in over.items():
        inner = merged.get(name)
        both = isinstance(inner, dict) and isinstance(value, dict) and "model_type" not in value
        merged[name] = _merge(inner, value) if both else value
    return merged


def inputs(model: nn.Module) -> dict[str, Any]:
    """Keyword arguments that the model runs on: two samples, the second with padding if it may."""
    config = model.config
    parameters = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    required = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    mains = (main,) if isinstance(main, str) else main
    wanted = [*(name for name in mains if name in parameters), *required]
    if "input_ids" in wanted:
        if "attention_mask" in parameters:
            wanted.append("attention_mask")
        if getattr(config, "is_encoder_decoder", False):
            wanted.append("decoder_input_ids")
    given = {name: ARGUMENTS[name](config) for name in wanted if name in ARGUMENTS}
    given |= INPUTS.get(config.model_type, {})
    dtype = next(model.parameters()).dtype
    return {name: _copy(value, dtype) for name, value in given.items() if value is not None}


def _copy(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.to(dtype, copy=True) if value.is_floating_point() else value.clone()
