"""What a checkpoint is held to before anything of it is built: its files and its sizes.

A configuration is a few bytes that can ask for any amount of time and memory, and an index can name
any file. So both are read as plain JSON first, and the model is put together without its numbers.
"""

import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

import torch

from rankscope.errors import SourceError
from rankscope.models.checkpoints._names import base_of_adapter, read_json
from rankscope.numerals import cut, gigabytes, short
from rankscope.process import available_memory, require

_MOST_PARTS: Final = 2_000
_MOST_COUNTED: Final = 10_000_000
"""Layers or experts, which are built one by one, and other things that are listed, at the most."""
_PARTS: Final = ("layers", "n_layer", "experts", "groups", "blocks", "depth")
_SAFE: Final = (".safetensors", ".safetensors.index.json")
_PACKED: Final = 6
"""Numbers that a byte of a file can stand for, at the most: GGUF has weights of 1.5 bits."""
_SLACK: Final = 2**22
"""Numbers that a model may have beside those of its file: poolers, tables of positions."""
_SPARED: Final = 0.9
"""Of the memory there is, what a model may take."""
_DEQUANTISED: Final = {
    "fp8": "FineGrainedFP8Config",
    "mxfp8": "FineGrainedFP8Config",
    "mxfp4": "Mxfp4Config",
}
"""Formats that Transformers turns into floating point by itself, on any device, and its options."""


def read_config(name: str, options: dict[str, Any], *, pickled: bool) -> Any:
    """The configuration of a folder, a GGUF file or a Hub id, once its files have been looked at.

    That of an adapter is its model's.
    """
    if is_gguf(name):
        return _gguf_config(Path(name))
    auto = require("transformers").AutoConfig
    path = local_file(name, "config.json", options)
    if Path(name).is_dir():
        base = base_of_adapter(Path(name))
        if base is not None and not Path(base, "adapter_config.json").is_file():
            return read_config(base, options, pickled=pickled)
        if path is None:
            ggufs = ", ".join(file.name for file in sorted(Path(name).glob("*.gguf"))[:3])
            advice = f" It holds {ggufs}; name that file." if ggufs else ""
            raise SourceError(f"{name} holds no config.json, so it is not a saved model.{advice}")
    if path is None:
        return auto.from_pretrained(name, **options)  # which says what it did not find
    raw = read_json(path)
    if not raw.get("model_type"):
        raise SourceError(
            f"{path} names no model_type, so it does not say which architecture this is; add "
            'it, for example "model_type": "bert".'
        )
    _check_numbers(path, raw)
    _check_files(name, raw, options, pickled=pickled)
    return auto.from_pretrained(name, **options)


def is_gguf(name: str) -> bool:
    """Whether a model's name is that of a GGUF file."""
    return name.lower().endswith(".gguf") and Path(name).is_file()


def _gguf_config(path: Path) -> Any:
    """The configuration in a GGUF file; Transformers checks its header against its size."""
    require("gguf")  # Transformers reads the file with it
    transformers = require("transformers")
    place = {"gguf_file": path.name, "local_files_only": True}
    raw, _ = transformers.PreTrainedConfig.get_config_dict(str(path.parent), **place)
    _check_numbers(path, raw)
    return transformers.AutoConfig.from_pretrained(str(path.parent), **place)


def _check_numbers(path: Path, raw: dict[str, Any]) -> None:
    """Raise if a configuration asks for more layers, or more of anything listed, than are tried."""
    for key, value in _numbers(raw):
        most = _MOST_PARTS if any(part in key for part in _PARTS) else _MOST_COUNTED
        counted = key.startswith(("num_", "n_")) or most == _MOST_PARTS
        if counted and value > most:
            raise SourceError(
                f"{path} says {key}={short(value)}, more than the {most:,} that are tried; no "
                "model is built from it."
            )


def dequantisation(name: str, config: Any) -> dict[str, Any]:
    """Options with which Transformers turns quantised weights into floating point.

    Empty for a checkpoint that is not quantised; raises for one whose format needs other packages.
    """
    inner = config.get_text_config(decoder=True)
    found = (getattr(each, "quantization_config", None) for each in (config, inner))
    quantised = next((each for each in found if each), None)
    if quantised is None:
        return {}
    said = quantised if isinstance(quantised, dict) else vars(quantised)
    bits = next((bits for bits in (4, 8) if said.get(f"load_in_{bits}bit")), None)
    method = "bitsandbytes" if bits else str(said.get("quant_method") or "an unnamed method")
    if method not in _DEQUANTISED:
        raise SourceError(
            f"{name} is quantised ({cut(method)}), and its weights cannot be turned into floating "
            "point here; load the checkpoint it was made from, or dequantise it and save that."
        )
    kind = getattr(require("transformers"), _DEQUANTISED[method])
    return {"quantization_config": kind(dequantize=True)}


def _check_files(
    name: str, config: dict[str, Any], options: dict[str, Any], *, pickled: bool
) -> None:
    """Raise if weights lie elsewhere, or in files that hold more than weights."""
    explicit = config.get("transformers_weights")
    found = {"model.safetensors.index.json", explicit if isinstance(explicit, str) else ""}
    if Path(name).is_dir():
        found |= {file.name for file in Path(name).glob("*.index.json")}
    files = {"config.json": [explicit]} if isinstance(explicit, str) else {}
    for index in sorted(file for file in found if file.endswith(".index.json")):
        path = local_file(name, index, options)
        if path is None:
            continue
        placed = read_json(path).get("weight_map")
        if not isinstance(placed, dict) or not all(isinstance(v, str) for v in placed.values()):
            raise SourceError(f"{path} does not say which weights are in which file.")
        files[index] = sorted(set(placed.values()))
    for index, file in ((index, file) for index, named in files.items() for file in named):
        inside = os.path.normpath(file)
        if Path(inside).is_absolute() or inside.startswith(".."):
            raise SourceError(f"{index} points outside its folder, to {file}; it is not read.")
        # An index of pickle files is used only where pickle files are asked for.
        of_safe_files = index.endswith(_SAFE) or index == "config.json"
        if of_safe_files and not pickled and not file.endswith(_SAFE):
            raise SourceError(
                f"{index} of {name} names {file}, which is no safetensors file; pickle files need "
                "pickled=True (--pickled)."
            )


def check_size(name: str, config: Any, *, trusted: bool, weights: int | None, spread: bool) -> None:
    """Raise if a model would be far larger than its files, of so many bytes, or than the memory.

    It is built without its numbers. ``spread`` says that it goes to several devices.
    """
    with torch.device("meta"):
        model = require("transformers").AutoModel.from_config(config, trust_remote_code=trusted)
    tensors = list(chain(model.parameters(), model.buffers()))
    numbers = sum(tensor.numel() for tensor in tensors)
    if weights is not None and numbers > _PACKED * weights + _SLACK:
        raise SourceError(
            f"{name} describes a model of {short(float(numbers))} numbers, and its files have "
            f"{short(float(weights))} bytes: its configuration belongs to other weights."
        )
    taken = sum(tensor.nbytes for tensor in tensors)
    if not spread and not fits_memory(taken):
        there = gigabytes(available_memory() or 0)
        raise SourceError(
            f"{name} takes about {gigabytes(taken)} of memory, and {there} are there; "
            "choose a smaller model, or spread it over devices (device_map)."
        )


def fits_memory(size: int) -> bool:
    """Whether a model of so many bytes may be built."""
    there = available_memory()
    return there is None or size <= _SPARED * there


def weight_bytes(name: str) -> int | None:
    """What a file, or those of a folder, take; None for a Hub id: they may not be here yet."""
    if Path(name).is_file():
        return Path(name).stat().st_size
    if not Path(name).is_dir():
        return None
    return sum(file.stat().st_size for file in Path(name).rglob("*") if file.is_file())


def local_file(name: str, file: str, options: dict[str, Any]) -> Path | None:
    """Where a file of a folder or Hub id is; None if there is none."""
    path: Any = Path(name, file)
    if not Path(name).is_dir():
        place = {key: options.get(key) for key in ("revision", "local_files_only")}
        try:
            hub = require("transformers.utils.hub")
            path = hub.cached_file(name, file, _raise_exceptions_for_missing_entries=False, **place)
        except (OSError, ValueError):  # the loader itself says why it cannot be reached
            return None
    return Path(path) if path is not None and Path(path).is_file() else None


def _numbers(config: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Every number of a configuration under its key, those of models inside it included."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, int | float) and not isinstance(item, bool):
                yield key, item
