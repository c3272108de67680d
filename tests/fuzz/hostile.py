"""Values that no one should pass, each made anew, by name."""

import math
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import nn

from rankscope import Network, Spec
from rankscope.core import masks


class Unfriendly:
    """An object whose every conversion fails."""

    def __repr__(self):
        raise RuntimeError("no repr")

    def __bool__(self):
        raise RuntimeError("no truth")

    def __eq__(self, other):
        raise RuntimeError("no comparison")

    __hash__ = None


class Labelled(torch.Tensor):
    """A subclass of Tensor."""


def _broken():
    net = Network.random(Spec(2, 2, 4))
    with torch.no_grad():
        net.blocks[0].attention.query.weight[0, 0] = math.nan
    return net


def _in_itself():
    itself = []
    itself.append(itself)
    return itself


def _key_of_itself():
    itself = {}
    itself["a"] = itself
    return itself


def _deep(wrapped, times=5000):
    value = 1.0
    for _ in range(times):
        value = wrapped(value)
    return value


X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))

NUMBERS = {
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "-1": lambda: -1,
    "0": lambda: 0,
    "1": lambda: 1,
    "2": lambda: 2,
    "0.5": lambda: 0.5,
    "-0.0": lambda: -0.0,
    "1e-320": lambda: 1e-320,
    "1e308": lambda: 1e308,
    "2**31": lambda: 2**31,
    "2**63": lambda: 2**63,
    "-2**63": lambda: -(2**63),
    "10**30": lambda: 10**30,
    "10**400": lambda: 10**400,
    "10**5000": lambda: 10**5000,
    "True": lambda: True,
    "False": lambda: False,
    "1j": lambda: 1j,
    "Fraction": lambda: Fraction(1, 3),
    "np.int64": lambda: np.int64(3),
    "np.float32": lambda: np.float32(0.5),
    "np.nan": lambda: np.float64("nan"),
    "np.bool": lambda: np.bool_(True),
    "np.uint8": lambda: np.uint8(2),
    "np.int64 far": lambda: np.int64(2**62),
    "np.float16": lambda: np.float16("inf"),
    "np.longdouble": lambda: np.longdouble("0.5"),
    "np.complex": lambda: np.complex64(1j),
    "np.timedelta": lambda: np.timedelta64(3, "s"),
    "2**62": lambda: 2**62,
}
TEXTS = {
    "empty": lambda: "",
    "word": lambda: "nonsense",
    "long": lambda: "x" * 100_000,
    "surrogate": lambda: "\ud800",
    "nul": lambda: "a\0b",
    "half a pair": lambda: "a\udfff.parquet",
    "backslash": lambda: "a\\",
    "line break": lambda: "a\nb\u2028c\r",
    "np.str": lambda: np.str_("a"),
    "escape": lambda: "\x1b]0;title\x07",
    "digits": lambda: "12",
    "mask": lambda: "window:2",
    "huge mask": lambda: "window:99999999999999999999",
    "percent": lambda: "{x} %s",
    "bytes": lambda: b"abc",
    "bytearray": lambda: bytearray(b"abc"),
}
THINGS = {
    "None": lambda: None,
    "object": object,
    "unfriendly": Unfriendly,
    "list": list,
    "tuple": tuple,
    "dict": dict,
    "set": lambda: {1, "a"},
    "list of None": lambda: [None],
    "list of words": lambda: ["a", "b"],
    "list of numbers": lambda: [1, 2.5],
    "nested list": lambda: [[], [[]]],
    "list of NumPy": lambda: [np.int64(1), np.float32(2), np.bool_(True)],
    "list of surrogates": lambda: ["\ud800", "a"],
    "list in itself": _in_itself,
    "dict in itself": _key_of_itself,
    "deep list": lambda: _deep(lambda inner: [inner]),
    "deep dict": lambda: _deep(lambda inner: {"a": inner}),
    "dict of words": lambda: {"a": "b"},
    "dict of numbers": lambda: {1: 2},
    "range": lambda: range(3),
    "huge range": lambda: range(10**12),
    "generator": lambda: (each for each in [1, None]),
    "class": lambda: Network,
    "type": lambda: int,
    "module": lambda: math,
    "slice": lambda: slice(1),
    "Ellipsis": lambda: ...,
    "exception": lambda: ValueError("x"),
    "array": lambda: np.zeros((2, 3, 4)),
    "array of objects": lambda: np.array([None, "a"], dtype=object),
    "table": lambda: pl.DataFrame({"metric": ["a"], "value": [1.0]}),
    "empty table": pl.DataFrame,
    "foreign table": lambda: pl.DataFrame({"a": [1]}),
    "series": lambda: pl.Series([1, 2]),
    "dtype": lambda: torch.int8,
    "device": lambda: torch.device("meta"),
    "generator of numbers": lambda: torch.Generator(),
    "missing file": lambda: Path("missing/folder/file.parquet"),
    "folder": lambda: Path(),
    "mask value": lambda: masks.Causal(),
    "spec": lambda: Spec(2, 2, 4),
    "network": lambda: Network.random(Spec(2, 2, 4)),
    "double network": lambda: Network.random(Spec(2, 2, 4), dtype=torch.float64),
    "broken network": _broken,
    "other network": lambda: Network.random(Spec(1, 1, 3, norm="none", mlp_ratio=0)),
    "linear": lambda: nn.Linear(4, 4),
    "module list": lambda: nn.ModuleList(),
}


def _quiet(make):
    def made():
        with warnings.catch_warnings():  # torch calls these kinds experimental
            warnings.simplefilter("ignore")
            return make()

    return made


TENSORS = {
    "float8": lambda: X.to(torch.float8_e4m3fn),
    "sparse": _quiet(lambda: X.to_sparse()),
    "csr": _quiet(lambda: torch.eye(4).to_sparse_csr()),
    "nested": _quiet(lambda: torch.nested.nested_tensor([X[0], X[0, :2]])),
    "jagged": _quiet(lambda: torch.nested.nested_tensor([X[0], X[0, :2]], layout=torch.jagged)),
    "meta": lambda: X.to("meta"),
    "complex": lambda: X.to(torch.complex64),
    "quantised": _quiet(lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)),
    "whole numbers": lambda: X.long(),
    "bits": lambda: X > 0,
    "small bits": lambda: torch.ones(2, 3, dtype=torch.bool),
    "no bits": lambda: torch.zeros(2, 3, dtype=torch.bool),
    "uint16": lambda: torch.zeros(2, 3, 4, dtype=torch.uint16),
    "half": lambda: X.half(),
    "bfloat16": lambda: X.bfloat16(),
    "double": lambda: X.double(),
    "scalar": lambda: torch.tensor(1.0),
    "vector": lambda: torch.ones(4),
    "matrix": lambda: torch.ones(3, 3) / 3,
    "empty tensor": lambda: torch.zeros(0),
    "no sample": lambda: X[:0],
    "no token": lambda: X[:, :0],
    "no feature": lambda: X[..., :0],
    "30 axes": lambda: torch.ones((1,) * 30),
    "64 axes": lambda: torch.ones((1,) * 64),
    "wide": lambda: torch.zeros(2, 3, 5),
    "nan tensor": lambda: X * math.nan,
    "inf tensor": lambda: X * math.inf,
    "large": lambda: X.double() * 1e307,
    "largest": lambda: X.double().sign() * 1e308,
    "small": lambda: X.double() * 1e-310,
    "grown": lambda: X.clone().requires_grad_(),
    "parameter": lambda: nn.Parameter(X.clone()),
    "subclass": lambda: X.as_subclass(Labelled),
    "transposed": lambda: X.transpose(0, 2),
    "ids": lambda: torch.arange(6).reshape(2, 3),
    "negative ids": lambda: -torch.arange(6).reshape(2, 3),
}
HOSTILE = NUMBERS | TEXTS | THINGS | TENSORS
LIKE = ((torch.Tensor, TENSORS), (str | Path, TEXTS), (int | float, NUMBERS))
"""Kinds of good arguments, and the hostile ones most like them."""
