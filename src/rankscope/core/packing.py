"""Values of rankscope as JSON, and back: what a saved object holds beside its table.

Numbers, texts, bytes, tuples, lists, mappings, paths, tensors, tables, and our own frozen
dataclasses and named tuples. Reading one never runs what a file says: a class is looked up among
those of rankscope that are loaded, and its constructor checks the fields.
"""

import math
import sys
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path, PurePath
from typing import Any

from rankscope.errors import InputError, KindError

_RECORD, _FIELDS = "class", "fields"


def pack(value: Any) -> Any:
    """A value as JSON can hold it; each kind that JSON lacks is an object with one key.

    >>> pack((1, float("inf")))
    {'tuple': [1, {'float': 'inf'}]}
    """
    if value is None or type(value) in (bool, str, int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, bytes):
        return {"bytes": _text(value)}
    if isinstance(value, PurePath):
        return {"path": str(value)}
    if _is_record(type(value)):
        return pack_record(type(value), _fields_of(value))
    if isinstance(value, Mapping):
        return {"mapping": [[pack(key), pack(entry)] for key, entry in value.items()]}
    if isinstance(value, list | tuple):
        entries = [pack(entry) for entry in value]
        return entries if isinstance(value, list) else {"tuple": entries}
    library = type(value).__module__.partition(".")[0]
    if library == "torch" and isinstance(value, sys.modules["torch"].Tensor):
        return {"tensor": _pack_tensor(value)}
    if library == "polars" and type(value).__name__ == "DataFrame":
        from rankscope import tables

        return {"table": _text(tables.to_parquet(value, {}))}
    raise KindError(f"a {type(value).__name__} cannot be saved in a file of rankscope.")


def pack_record(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """An object of one of our classes, by the values of its fields."""
    named = {name: pack(value) for name, value in values.items()}
    return {_RECORD: f"{kind.__module__}:{kind.__qualname__}", _FIELDS: named}


def unpack(packed: Any) -> Any:
    """The value that was packed; raises if this was not made by ``pack``.

    >>> unpack(pack({"a": (1, None), 2: b"c"}))
    {'a': (1, None), 2: b'c'}
    """
    if isinstance(packed, list):
        return [unpack(entry) for entry in packed]
    if not isinstance(packed, dict):
        return packed
    if _RECORD in packed:
        kind, values = unpack_record(packed)
        return kind(**values)
    ((kind, inside),) = packed.items()
    if kind == "tuple":
        return tuple(unpack(entry) for entry in inside)
    if kind == "mapping":
        return {unpack(key): unpack(entry) for key, entry in inside}
    if kind == "tensor":
        return _unpack_tensor(inside)
    if kind == "table":
        from rankscope import tables

        return tables.from_bytes(b64decode(inside, validate=True))[0]
    if kind == "bytes":
        return b64decode(inside, validate=True)
    plain: dict[str, type] = {"float": float, "path": Path}
    return plain[kind](inside)


def unpack_record(packed: Mapping[str, Any]) -> tuple[type[Any], dict[str, Any]]:
    """The class of a packed object, which is one of ours, and the values of its fields."""
    module, _, name = packed[_RECORD].partition(":")
    kind = vars(sys.modules.get(module)).get(name) if _is_ours(module) else None
    if not isinstance(kind, type) or not _is_record(kind):
        raise InputError(f"{packed[_RECORD]} is not a class of rankscope that a file can hold.")
    return kind, {name: unpack(value) for name, value in packed[_FIELDS].items()}


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "rankscope" and module in sys.modules


def _is_record(kind: type[Any]) -> bool:
    """Whether objects of a class are defined by their fields."""
    named = issubclass(kind, tuple) and hasattr(kind, "_fields")
    frozen = is_dataclass(kind) and getattr(kind, "__dataclass_params__").frozen  # noqa: B009
    return _is_ours(kind.__module__) and (named or frozen)


def _fields_of(record: Any) -> dict[str, Any]:
    names = [f.name for f in fields(record)] if is_dataclass(record) else record._fields
    return {name: getattr(record, name) for name in names}


def _text(content: bytes) -> str:
    return b64encode(content).decode()


def _pack_tensor(tensor: Any) -> dict[str, Any]:
    torch = sys.modules["torch"]
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": list(tensor.shape), "content": _text(content)}


def _unpack_tensor(packed: Mapping[str, Any]) -> Any:
    import torch

    dtype = getattr(torch, packed["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"{packed['dtype']} is not a dtype of PyTorch.")
    content = bytearray(b64decode(packed["content"], validate=True))
    flat = torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)
    return flat.reshape(packed["shape"])
