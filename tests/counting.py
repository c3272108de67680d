"""Counts what PyTorch is asked for, as a device would feel it."""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

SYNCHRONISING = {"_local_scalar_dense", "nonzero", "masked_select", "equal"}
VIEWS = {"alias", "detach", "expand", "permute", "select", "slice", "split", "squeeze", "t"}
VIEWS |= {"transpose", "unbind", "unsqueeze", "view", "_unsafe_view"}


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
