"""How kernels are started: compiled once, and from then on without a look at their arguments."""

from types import SimpleNamespace

import pytest

from rankscope.metrics import _kernels


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


@pytest.mark.parametrize("grid", [(4,), (4, 2), (4, 2, 3)])
def test_a_kernel_is_compiled_once_for_arguments_of_a_kind(grid, monkeypatch) -> None:
    kernel = Kernel()
    monkeypatch.setattr(_kernels, "_compiled", {})
    monkeypatch.setattr(_kernels, "import_module", lambda _: SimpleNamespace(double=kernel))
    for key in ((("double", 1)), (("double", 1)), (("double", 2))):
        again = _kernels.start(key, grid, ("x", 5), (True,), warps=2)
    again(0x5F00, 6, True)
    whole = (*grid, 1, 1)[:3]
    assert kernel.calls == [
        ("first, 2 warps", whole, ("x", 5, True)),
        ("again", whole, ("x", 5, True)),
        ("first, 2 warps", whole, ("x", 5, True)),
        ("again", whole, (0x5F00, 6, True)),
    ]
