"""Digests that any changed number changes, and tensors that are not finite."""

import math
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from rankscope.core import weights
from rankscope.core.weights import (
    _KEYS,
    _copied,
    _mixed,
    _mixed_by_torch,
    begin_digests,
    named_tensors,
    not_finite,
    tensor_digests,
    weights_digest,
)

LARGE = (64, 300)  # two rows of the table of words and a rest, in every dtype here


def numbers(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def name(tensor):
    return tensor_digests({"it": tensor})["it"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (3,), (7, 5), LARGE, (1, 20000)], ids=str)
def test_every_single_number_counts(shape, dtype):
    tensor = numbers(*shape, dtype=dtype)
    names = {name(tensor)}
    places = torch.randperm(tensor.numel(), generator=torch.Generator().manual_seed(1))[:40]
    for place in places.tolist():
        other = tensor.clone()
        other.view(-1)[place] += 1
        names.add(name(other))
    assert len(names) == 1 + len(places)


@pytest.mark.parametrize("shape", [(7, 5), LARGE, (2048, 48)], ids=str)
def test_numbers_that_change_places(shape):
    """Heads, units and rows in another order are another network."""
    tensor = numbers(*shape)
    rows, columns = (torch.randperm(n, generator=torch.Generator().manual_seed(n)) for n in shape)
    turned = [tensor, tensor[rows], tensor[:, columns], tensor.flip(0), tensor.flip(1)]
    assert len({name(each) for each in turned}) == len(turned)


def signs(count, period):
    return torch.where(torch.arange(count) % period == 0, -1.0, 1.0)


ORDINARY = {
    "negated": lambda w: -w,
    "twice": lambda w: 2 * w,
    "16 times": lambda w: 16 * w,
    "a sixteenth": lambda w: w / 16,
    "rows negated": lambda w: w * signs(len(w), 2)[:, None].to(w),
    "columns negated": lambda w: w * signs(w.shape[1], 2).to(w),
    "half of the columns negated": lambda w: w * torch.arange(w.shape[1]).lt(256).mul(2).sub(1),
    "rows in pairs": lambda w: w.view(-1, 2, w.shape[1]).flip(1).reshape(w.shape),
    "columns in pairs": lambda w: w.view(len(w), -1, 2).flip(2).reshape(w.shape),
    "two rows": lambda w: torch.cat((w[8:9], w[1:8], w[:1], w[9:])),
    "whole rows of the table": lambda w: w.roll(64, 0),
    "one bit": lambda w: torch.cat((w[:-1], torch.nextafter(w[-1:], w[-1:] + 1))),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["normal", "signs", "signs in a chequerboard", "rounded"])
def test_ordinary_changes_of_large_tensors_count(kind, dtype):
    """Sums of words of eight bytes are the same for many of them: signs are their top bits."""
    w = numbers(256, 512, dtype=dtype)
    if kind == "signs":
        w = w.sign()
    elif kind == "signs in a chequerboard":
        w = (signs(256, 2)[:, None] * signs(512, 2)).to(dtype)
    elif kind == "rounded":
        w = w.bfloat16().to(dtype)
    changed = {change: make(w) for change, make in ORDINARY.items()}
    distinct = {change: other for change, other in changed.items() if not torch.equal(w, other)}
    assert {"negated", "16 times", "columns negated", "columns in pairs", "one bit"} <= set(
        distinct
    )
    assert name(w) not in {name(other) for other in distinct.values()}
    for change, other in distinct.items():
        assert [k for k, each in distinct.items() if name(each) == name(other)] == [
            k for k, each in distinct.items() if torch.equal(each, other)
        ], change


def test_shape_and_dtype_count():
    tensor = torch.zeros(4, 6)
    others = [tensor.view(6, 4), tensor.view(24), tensor.double(), tensor.int(), tensor.bfloat16()]
    assert len({name(each) for each in (tensor, *others)}) == 6


@pytest.mark.parametrize("shape", [(6, 4), LARGE], ids=str)
def test_how_a_tensor_lies_in_memory_does_not_count(shape):
    tensor = numbers(*shape)
    turned = tensor.T.contiguous().T
    inside = torch.cat((tensor.new_zeros(1), tensor.flatten()))[1:].view(shape)
    assert not turned.is_contiguous()
    assert inside.storage_offset() == 1
    assert {name(tensor), name(tensor.clone()), name(turned), name(inside)} == {name(tensor)}


def test_a_shared_tensor_is_named_as_if_it_were_copied():
    class Pair(nn.Module):
        def __init__(self, first, second):
            super().__init__()
            self.first, self.second = nn.Parameter(first), nn.Parameter(second)

    x = numbers(3, 3)
    shared = Pair(x, x)
    shared.second = shared.first
    found = [weights_digest(tensor_digests(named_tensors(each))) for each in (shared, Pair(x, x))]
    assert found[0] == found[1]
    assert found[0] != weights_digest(tensor_digests(named_tensors(Pair(x, x + 1))))


def test_names_count():
    a, b = tensor_digests({"a": numbers(3), "b": numbers(3, seed=1)}).values()
    assert weights_digest({"a": a, "b": b}) != weights_digest({"a": b, "b": a})


ODD = {
    "meta": lambda: torch.empty(3, 3, device="meta"),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "lazy": nn.parameter.UninitializedParameter,
    "empty": lambda: torch.empty(0, 3),
    "integers": lambda: torch.tensor([1, 2]),
    "bools": lambda: torch.tensor([True, False]),
    "complex": lambda: torch.ones(2, dtype=torch.complex64),
    "quarter": lambda: torch.ones(3).to(torch.float8_e4m3fn),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.filterwarnings("ignore")  # quantised tensors are going away in PyTorch
def test_what_has_no_plain_numbers_has_a_name_too(kind):
    tensor = ODD[kind]()
    assert name(tensor) == name(tensor)
    assert not_finite({"it": tensor}) == []


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]
)
def test_what_is_not_finite_is_found(dtype, bad):
    tensors = {str(k): numbers(5, 7, seed=k, dtype=dtype) for k in range(4)}
    assert not_finite(tensors) == []
    tensors["2"][3, 4] = bad
    assert not_finite(tensors) == ["2"]
    assert not_finite(tensors, infinity=True) == (["2"] if math.isnan(bad) else [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_large_numbers_are_no_infinity(dtype):
    most = torch.full((9,), torch.finfo(dtype).max, dtype=dtype)
    assert not_finite({"it": most}) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_digests_on_accelerators_are_the_same(dtype):
    """Their mixing against NumPy's and plain integers; their one copy against several."""
    words = numbers(300, 4096, dtype=dtype).flatten().view(torch.int64).view(-1, 1024)
    found = _mixed(words.view(torch.uint8).flatten(), len(words))
    assert len(words) > 2 * 128
    assert torch.equal(found, _mixed_by_torch(words))
    keys, row = [int(key) for key in _KEYS], [word % 2**64 for word in words[1].tolist()]
    keyed = [(word + key) % 2**64 for word, key in zip(row, keys, strict=True)]
    assert int(found[1]) % 2**64 == sum(t * (t >> 32) for t in keyed) % 2**64
    pieces = [numbers(3).view(torch.uint8), numbers(5).view(torch.uint8)]
    whole = list(_copied(pieces, torch.device("cuda")))
    assert whole == list(_copied(pieces, torch.device("cpu")))


def test_several_threads_find_the_same(monkeypatch):
    tensors = {str(k): numbers(*LARGE, seed=k) for k in range(5)}
    alone = tensor_digests(tensors)
    monkeypatch.setattr("rankscope.core.weights._MANY_BYTES", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert tensor_digests(tensors) == alone


@pytest.fixture
def read(monkeypatch):
    """The shapes of the tensors that were read."""
    shapes = []
    doubts = weights._doubts
    monkeypatch.setattr(weights, "_doubts", lambda it: shapes.append(it.shape) or doubts(it))
    monkeypatch.setattr(weights, "_FINITE", {})
    return shapes


def test_what_was_found_finite_is_not_read_again(read):
    """Unless PyTorch has seen a write to it, or it is another tensor in the same place."""
    tensors = {"weight": numbers(*LARGE), "mask": torch.tensor([0.0, -math.inf])}

    def broken(*, infinity=True):
        return not_finite(tensors, infinity=infinity)

    assert [broken(), broken()] == [[], []]
    assert read == [
        LARGE,
        (2,),
        (2,),
    ]  # the mask is infinite, which is allowed of buffers and not of weights
    assert broken(infinity=False) == ["mask"]
    tensors["weight"][3, 4] = math.nan
    assert [broken(), broken()] == [["weight"], ["weight"]]
    tensors["weight"] = numbers(*LARGE)
    assert broken() == []
    tensors["weight"] = torch.full(LARGE, math.nan)
    assert broken() == ["weight"]


def test_what_pytorch_does_not_count_is_read_each_time(read):
    with torch.inference_mode():
        tensors = {"weight": numbers(3)}
        assert [not_finite(tensors), not_finite(tensors)] == [[], []]
        assert read == [(3,), (3,)]
        tensors["weight"][1] = math.nan
    assert not_finite(tensors) == ["weight"]


@pytest.mark.usefixtures("read")
def test_what_is_remembered_has_a_limit(monkeypatch):
    monkeypatch.setattr(weights, "_MOST_REMEMBERED", 3)
    kept = [{"weight": numbers(3, seed=seed)} for seed in range(9)]
    for tensors in kept:
        assert not_finite(tensors) == []
        assert 1 <= len(weights._FINITE) <= 4


# Digests in two steps, and tensors that are made of others.


@pytest.mark.parametrize("shape", [(3,), LARGE], ids=str)
def test_a_digest_is_of_what_was_there_when_it_was_begun(shape):
    tensor = numbers(*shape)
    before = name(tensor)
    finish = begin_digests({"it": tensor})
    tensor.add_(1)
    assert finish()["it"] == before != name(tensor)
    kept = weakref.ref(tensor)
    del tensor
    assert kept() is None
    assert finish()["it"] == before


OTHERS = {
    "sparse": lambda tensor: tensor.to_sparse(),
    "uncoalesced": lambda tensor: torch.sparse_coo_tensor([[1, 1]], tensor[0, :2], (3,)),
    "compressed rows": lambda tensor: tensor.to_sparse_csr(),
    "compressed columns": lambda tensor: tensor.to_sparse_csc(),
    "blocks of rows": lambda tensor: tensor.to_sparse_bsr((2, 2)),
    "nested": lambda tensor: torch.nested.nested_tensor([tensor[0], tensor[1, :3]]),
    "nested, jagged": lambda tensor: torch.nested.nested_tensor(
        [tensor[0], tensor[1, :3]], layout=torch.jagged
    ),
    "oneDNN": lambda tensor: tensor.to_mkldnn(),
    "quantised": lambda tensor: torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8),
}


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.filterwarnings("ignore")  # sparse, nested and quantised tensors warn when made
def test_every_number_of_a_tensor_that_is_made_of_others_counts(kind):
    make, tensor, other = OTHERS[kind], numbers(4, 6), numbers(4, 6)
    other[0, 1] += 1
    assert name(make(tensor)) == name(make(tensor.clone())) != name(make(other))


def test_places_in_a_sparse_tensor_count():
    one, other = (torch.eye(3).roll(k, 0).to_sparse() for k in (0, 1))
    assert torch.equal(one.coalesce().values(), other.coalesce().values())
    assert name(one) != name(other)


def test_the_kernels_read_what_the_cpu_reads() -> None:
    script = Path(__file__).with_name("digests_interpreted.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *tensors, divided = done.stdout.splitlines()
    assert divided == "True", "every row is read once"
    lines = [line.split(";") for line in tensors]
    assert len(lines) == 40
    assert [line for line in lines if line[-1] != "True"] == []
    assert {int(size) > 8 for _, _, size, _ in lines} == {True, False}
