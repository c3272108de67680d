"""Counts what PyTorch is asked for, as a device would feel it."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

SYNCHRONISING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero"}
SYNCHRONISING |= {"_linalg_svd", "_linalg_eigh", "_linalg_eigvals", "linalg_eig", "unique"}
READING = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__")
"""Methods by which Python reads a tensor; on a CPU, not all of them ask PyTorch."""
VIEWS = {"alias", "detach", "expand", "permute", "select", "slice", "split", "squeeze", "t"}
VIEWS |= {"as_strided", "transpose", "unbind", "unsqueeze", "view", "_unsafe_view"}


class Calls(TorchDispatchMode):
    """Counts calls that compute something, and those that wait for what the device is at.

    Boolean indexing is one of the latter: how much is chosen must be known before it is returned.
    """

    def __init__(self) -> None:
        super().__init__()
        self.computing: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        chosen = args[1] if name in ("index", "index_put", "index_put_") else ()
        boolean = any(each is not None and each.dtype == torch.bool for each in chosen)
        self.waiting[name] += name in SYNCHRONISING or boolean
        self.computing[name] += name not in VIEWS
        return func(*args, **(kwargs or {}))


@contextmanager
def waits_in(model: nn.Module) -> Iterator[Counter[str]]:
    """What waits for the device between the beginning of a model's forward pass and its end."""
    calls, found = Calls(), Counter()

    def begin(*_) -> None:
        calls.__enter__()

        def counting(name, method):
            def read(tensor, *args, **kwargs):
                found[name] += 1
                return method(tensor, *args, **kwargs)

            return read

        for name in READING:
            patch.setattr(Tensor, name, counting(name, getattr(Tensor, name)))

    def end(*_) -> None:
        patch.undo()
        calls.__exit__(None, None, None)
        found.update(+calls.waiting)

    with pytest.MonkeyPatch.context() as patch:
        hooks = [
            model.register_forward_pre_hook(begin),
            model.register_forward_hook(end, always_call=True),
        ]
        yield found
        for hook in hooks:
            hook.remove()
