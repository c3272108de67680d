"""What a checkpoint is held to before anything of it is built: its files and its sizes.

A configuration is a few bytes that can ask for any amount of time and memory, and an index can name
any file. So both are read as plain JSON first, and the model is put together without its numbers.
"""

import json
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoConfig, AutoModel
from transformers.utils.hub import cached_file

from rankscope.errors import SourceError
from rankscope.numerals import gigabytes, short
from rankscope.process import available_memory

_MOST_PARTS: Final = 2_000
_MOST_COUNTED: Final = 10_000_000
"""Layers or experts, which are built one by one, and other things that are listed, at the most."""
_PARTS: Final = ("layers", "n_layer", "experts", "groups", "blocks", "depth")
_SAFE: Final = (".safetensors", ".safetensors.index.json")
_PACKED: Final = 4
"""Numbers that a byte of a file can stand for, at the most: those of two bits."""
_SLACK: Final = 2**22
"""Numbers that a model may have beside those of its file: poolers, tables of positions."""
_SPARED: Final = 0.9
"""Of the memory there is, what a model may take."""


def read_config(name: str, options: dict[str, Any], *, pickled: bool) -> Any:
    """The configuration of a folder or Hub id, once its files have been looked at."""
    raw, path = _json_of(name, "config.json", options)
    if path is None:
        if Path(name).is_dir():
            raise SourceError(f"{name} holds no config.json, so it is not a saved model.")
        return AutoConfig.from_pretrained(name, **options)  # which says what it did not find
    if not raw.get("model_type"):
        raise SourceError(
            f"{path} names no model_type, so it does not say which architecture this is; add "
            'it, for example "model_type": "bert".'
        )
    for key, value in _numbers(raw):
        most = _MOST_PARTS if any(part in key for part in _PARTS) else _MOST_COUNTED
        counted = key.startswith(("num_", "n_")) or most == _MOST_PARTS
        if counted and value > most:
            raise SourceError(
                f"{path} says {key}={short(value)}, more than the {most:,} that are tried; no "
                "model is built from it."
            )
    if Path(name, "adapter_config.json").is_file():
        raise SourceError(f"{name} is an adapter; merge it into its model and save that.")
    _check_files(name, raw, options, pickled=pickled)
    return AutoConfig.from_pretrained(name, **options)


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
        raw, path = _json_of(name, index, options)
        if path is None:
            continue
        placed = raw.get("weight_map")
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
        model = AutoModel.from_config(config, trust_remote_code=trusted)
    tensors = list(chain(model.parameters(), model.buffers()))
    numbers = sum(tensor.numel() for tensor in tensors)
    if weights is not None and numbers > _PACKED * weights + _SLACK:
        raise SourceError(
            f"{name} describes a model of {short(float(numbers))} numbers, and its files have "
            f"{short(float(weights))} bytes: its configuration belongs to other weights."
        )
    taken, there = sum(tensor.nbytes for tensor in tensors), available_memory()
    if not spread and there is not None and taken > _SPARED * there:
        raise SourceError(
            f"{name} takes about {gigabytes(taken)} of memory, and {gigabytes(there)} are there; "
            "choose a smaller model, or spread it over devices (device_map)."
        )


def weight_bytes(name: str) -> int | None:
    """What the files of a folder take; None for a Hub id, whose files may not be here yet."""
    if not Path(name).is_dir():
        return None
    return sum(file.stat().st_size for file in Path(name).rglob("*") if file.is_file())


def _json_of(name: str, file: str, options: dict[str, Any]) -> tuple[dict[str, Any], Path | None]:
    """What a file of a folder or Hub id says, and where it is; None if it is not there."""
    path: Any = Path(name, file)
    if not Path(name).is_dir():
        place = {key: options.get(key) for key in ("revision", "local_files_only")}
        try:
            path = cached_file(name, file, _raise_exceptions_for_missing_entries=False, **place)
        except (OSError, ValueError):  # the loader itself says why it cannot be reached
            path = None
    if path is None or not Path(path).is_file():
        return {}, None
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{path} cannot be read as JSON: {error}.") from None
    return content if isinstance(content, dict) else {}, Path(path)


def _numbers(config: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Every number of a configuration under its key, those of models inside it included."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, int | float) and not isinstance(item, bool):
                yield key, item
