"""How kernels are started: compiled once, and from then on without a look at their arguments."""

from types import SimpleNamespace

import pytest
import torch

from rankscope.core.metrics import _fused


class Compiled:
    """As Triton's, which wants a grid of three, and all arguments by place."""

    def __init__(self, calls):
        self._calls = calls

    def __getitem__(self, grid):
        return lambda *given: self._calls.append(("again", (grid[0], grid[1], grid[2]), given))


class Kernel:
    """As Triton's: compiles what it is called with."""

    def __init__(self):
        self.calls = []

    def __getitem__(self, grid):
        def call(*given, num_warps):
            self.calls.append((f"first, {num_warps} warps", grid, given))
            return Compiled(self.calls)

        return call


@pytest.fixture
def kernel(monkeypatch):
    kernel, loaded = Kernel(), []
    monkeypatch.setattr(_fused, "_compiled", {})
    monkeypatch.setattr(
        _fused, "import_module", lambda name: loaded.append(name) or SimpleNamespace(own=kernel)
    )
    yield kernel
    assert set(loaded) == {"rankscope.core.metrics.file"}


@pytest.mark.parametrize("grid", [(4,), (4, 2), (4, 2, 3)])
def test_a_kernel_is_compiled_once_and_then_started_by_address(grid, kernel) -> None:
    x, y = torch.zeros(2, 64)
    for free, tensor in enumerate((x, y)):
        again = _fused.start("file.own", grid, (tensor,), (5,), (True,), free=(free,), warps=2)
    again(0x5F00, 2, 5, True)
    whole = (*grid, 1, 1)[:3]
    assert kernel.calls == [
        ("first, 2 warps", whole, (x, 0, 5, True)),
        ("again", whole, (y.data_ptr(), 1, 5, True)),
        ("again", whole, (0x5F00, 2, 5, True)),
    ]


def test_what_triton_compiles_anew_for_is_compiled_anew(kernel) -> None:
    x = torch.zeros(64)
    for tensor, number, option, warps in (
        (x, 5, 1, 1),
        (x.half(), 5, 1, 1),
        (x[1:], 5, 1, 1),  # not at a multiple of 16 bytes
        (x, 16, 1, 1),
        (x, 5, 2, 1),
        (x, 5, 1, 2),
    ):
        _fused.start("file.own", (1,), (tensor,), (number,), (option,), warps=warps)
    assert [call.split(",")[0] for call, *_ in kernel.calls] == ["first"] * 6
