"""LoRA adapters in PEFT's format, merged into their model: W + scale · B A.

The merge is written out here, so that it needs no further package and runs nothing that an
adapter's configuration asks for. A key that is not known to leave the product as it is, is refused.
"""

import math
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from rankscope.errors import SourceError
from rankscope.models.checkpoints._files import local_file
from rankscope.models.checkpoints._names import base_of_adapter, read_json
from rankscope.numerals import cut
from rankscope.process import require

_CONFIG, _WEIGHTS, _PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_PREFIX: Final = "base_model.model."
_PART: Final = re.compile(r"(.+?)\.(lora_(?:A|B|embedding_A|embedding_B|magnitude_vector))(\.\w+)?")
_KNOWN: Final = """
alpha_pattern auto_mapping base_model_name_or_path bias ensure_weight_tying eva_config
exclude_modules fan_in_fan_out inference_mode init_lora_weights layers_pattern layers_to_transform
loftq_config lora_alpha lora_bias lora_dropout megatron_core modules_to_save peft_type peft_version
qalora_group_size r rank_pattern revision target_modules task_type use_dora use_rslora
"""
"""Keys that the merge reads, or that say only how the adapter was trained."""
_PLAIN_STARTS: Final = (True, False, None, "gaussian", "eva", "orthogonal")
"""Initialisations that leave the model's own weights as they are; PiSSA and others change them."""
_ADVICE: Final = "merge it with PEFT (merge_and_unload), save the model, and load that folder"


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter: where it is, the model it belongs to, and its configuration."""

    name: str
    base: str
    weights: Path
    config: dict[str, Any]

    @property
    def revision(self) -> str | None:
        """The revision of the model on the Hub."""
        revision = self.config.get("revision")
        return revision if isinstance(revision, str) else None

    def merge(self, model: nn.Module) -> None:
        """Add the adapter to the weights of its model, in place."""
        parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
        whole: dict[str, Tensor] = {}
        for key, tensor in self._tensors():
            name = key.removeprefix(_PREFIX).replace(".base_layer.", ".")
            if match := _PART.fullmatch(name):
                suffix = "_bias" if match[3] == ".bias" else ""
                parts[match[1]][match[2] + suffix] = tensor
            elif "lora_" in name or not key.startswith(_PREFIX):
                raise self._refusal(f"has a weight of unknown meaning, {cut(key)}")
            else:
                whole[name] = tensor
        merged = 0
        with torch.no_grad():
            for name, tensor in whole.items():  # what was trained beside the adapter
                path, _, parameter = name.rpartition(".")
                module = self._module(model, path)
                if module is not None:
                    self._replace(name, getattr(module, parameter, None), tensor)
                    merged += 1
            for name, tensors in parts.items():
                module = self._module(model, name)
                if module is not None:
                    self._add(name, module, tensors)
                    merged += 1
        if not merged:
            raise self._refusal("has no weight for any layer of its model")
        # A head that the adapter changed is not in this model, so the saved one is not its head.
        config: Any = getattr(model, "config", None)
        if config is not None:
            config.name_or_path = f"{self.name} merged into {self.base}"

    def _tensors(self) -> list[tuple[str, Tensor]]:
        if self.weights.name == _PICKLE:
            content = torch.load(self.weights, map_location="cpu", weights_only=True)
            return list(content.items())
        with require("safetensors").safe_open(self.weights, framework="pt") as file:
            return [(key, file.get_tensor(key)) for key in file.keys()]  # noqa: SIM118

    def _module(self, model: nn.Module, name: str) -> nn.Module | None:
        """The layer of that name; None for one of a head, which is not loaded."""
        prefix = f"{getattr(model, 'base_model_prefix', '')}."
        for path in (name, name.removeprefix(prefix)):
            try:
                return model.get_submodule(path)
            except AttributeError:
                continue
        known = {child for child, _ in model.named_children()}
        if name.startswith(prefix) or name.partition(".")[0] in known:
            raise self._refusal(f"changes {cut(name)}, which {self.base} does not have")
        return None

    def _add(self, name: str, module: nn.Module, tensors: dict[str, Tensor]) -> None:
        """W + scale · B A, with DoRA's magnitudes if there are any."""
        embeds = isinstance(module, nn.Embedding)
        is_turned = isinstance(module, require("transformers.pytorch_utils").Conv1D)
        if not (embeds or is_turned or isinstance(module, nn.Linear)):
            raise self._refusal(f"changes {cut(name)}, a {type(module).__name__}")
        kind = "embedding_" if embeds else ""
        down, up = tensors.get(f"lora_{kind}A"), tensors.get(f"lora_{kind}B")
        magnitude = tensors.get("lora_magnitude_vector")
        weight = module.weight
        assert isinstance(weight, Tensor)
        turned = embeds or is_turned  # stored as (input, output)
        rows, columns = weight.shape[::-1] if turned else weight.shape
        shape = tuple(weight.shape)
        if down is None or up is None or not {down.ndim, up.ndim} <= {2} or not len(down):
            raise self._refusal(f"lacks a matrix for {cut(name)}")
        rank = len(down)
        if (*up.shape, *down.shape) != (rows, rank, rank, columns):
            raise self._refusal(f"does not fit {cut(name)}, whose shape is {shape}")
        is_dora = magnitude is not None
        if bool(self.config.get("use_dora")) != is_dora or (embeds and is_dora):
            raise self._refusal(f"has no or unexpected DoRA magnitudes for {cut(name)}")
        number = torch.promote_types(weight.dtype, torch.float32)
        scale = self._alpha(name) / (math.sqrt(rank) if self.config.get("use_rslora") else rank)
        product = scale * (up.to(weight.device, number) @ down.to(weight.device, number))
        changed = (weight.T if turned else weight).to(number) + product
        if magnitude is not None:
            if magnitude.numel() != rows:
                raise self._refusal(f"has DoRA magnitudes that do not fit {cut(name)}")
            lengths = magnitude.to(weight.device, number).reshape(rows, 1)
            changed *= lengths / changed.norm(dim=1, keepdim=True)
        weight.copy_(changed.T if turned else changed)
        if (added := tensors.get("lora_B_bias")) is not None:
            bias = getattr(module, "bias", None)
            if bias is None or added.shape != bias.shape:
                raise self._refusal(f"has a bias that does not fit {cut(name)}")
            bias += scale * added.to(bias)

    def _replace(self, name: str, parameter: Tensor | None, tensor: Tensor) -> None:
        if not isinstance(parameter, Tensor) or parameter.shape != tensor.shape:
            raise self._refusal(f"replaces {cut(name)} by one of shape {tuple(tensor.shape)}")
        parameter.copy_(tensor)

    def _alpha(self, name: str) -> float:
        """α of a layer; a pattern names it by the end of its path."""
        alpha = self.config.get("lora_alpha", 8)
        for pattern, value in (self.config.get("alpha_pattern") or {}).items():
            if not re.fullmatch(r"[\w.]+", pattern):
                raise self._refusal(f"has an alpha_pattern that is not a path, {cut(pattern)}")
            if f".{name}".endswith(f".{pattern}"):
                alpha = value
                break
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) < 1e9:
            raise self._refusal(f"has lora_alpha={cut(str(alpha))}, which is not a usable number")
        return float(alpha)

    def _refusal(self, reason: str) -> SourceError:
        return SourceError(f"the adapter {self.name} {reason}, so it is not merged; {_ADVICE}.")


def read_adapter(name: str, options: dict[str, Any], *, pickled: bool) -> Adapter | None:
    """The adapter in a folder or of a Hub id; None if there is none."""
    folder = Path(name)
    if not folder.is_dir():
        if folder.is_file() or local_file(name, "config.json", options) is not None:
            return None
        found = local_file(name, _CONFIG, options)
        if found is None:
            return None
        folder = found.parent
    base = base_of_adapter(folder)
    if base is None:
        return None
    config = read_json(folder / _CONFIG)
    adapter = Adapter(name, base, _weights(name, options, pickled=pickled), config)
    kind = config.get("peft_type")
    if kind != "LORA":
        raise SourceError(f"{name} is a {cut(str(kind))} adapter; only LoRA is merged: {_ADVICE}.")
    if config.get("init_lora_weights", True) not in _PLAIN_STARTS:
        start = cut(str(config["init_lora_weights"]))
        raise adapter._refusal(f"was initialised by {start}, which changes the model's own weights")
    for key, value in config.items():
        if key not in _KNOWN.split() and value not in (None, False, 0, "", [], {}):
            raise adapter._refusal(f"uses {cut(key)}, which is not known here")
    if not isinstance(config.get("alpha_pattern") or {}, dict):
        raise adapter._refusal("has an alpha_pattern that is not a table")
    try:
        base_folder = Path(base).expanduser()
        is_folder = base_folder.is_dir()
    except (OSError, RuntimeError, ValueError):
        is_folder = False
    if is_folder and base_folder.resolve() == folder.resolve():
        raise SourceError(f"the adapter {name} names itself as its model; name the model.")
    if is_folder and (base_folder / _CONFIG).is_file():
        raise SourceError(f"the model of {name}, {base}, is itself an adapter; merge that first.")
    return adapter


def _weights(name: str, options: dict[str, Any], *, pickled: bool) -> Path:
    folder = Path(name)
    if folder.is_dir() and any(folder.glob("model*.safetensors")):
        raise SourceError(
            f"{name} holds a model and an adapter; move one of them into a folder of its own."
        )
    path = local_file(name, _WEIGHTS, options)
    if path is None and pickled:
        path = local_file(name, _PICKLE, options)
    if path is None:
        raise SourceError(
            f"{name} is an adapter without {_WEIGHTS}; a pickle file ({_PICKLE}) needs "
            "pickled=True (--pickled)."
        )
    return path
