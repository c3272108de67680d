"""rankscope shows how a transformer loses, or keeps, the differences between its tokens.

Names are loaded when first used, so that ``import rankscope`` and the command line start at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from rankscope.version import __version__

if TYPE_CHECKING:
    from rankscope.families import Loaded as Loaded
    from rankscope.families import load as load
    from rankscope.families import verify as verify
    from rankscope.metrics import residual as residual
    from rankscope.network import Network as Network
    from rankscope.network import Spec as Spec
    from rankscope.tracing import Trace as Trace
    from rankscope.tracing import trace as trace

_HOMES = {
    "Loaded": "rankscope.families",
    "Network": "rankscope.network",
    "Spec": "rankscope.network",
    "Trace": "rankscope.tracing",
    "load": "rankscope.families",
    "residual": "rankscope.metrics",
    "trace": "rankscope.tracing",
    "verify": "rankscope.families",
}
_ROOMS = (
    "errors",
    "experiments",
    "families",
    "figures",
    "metrics",
    "network",
    "report",
    "tables",
    "text",
    "tracing",
)

__all__ = ["__version__", *_HOMES, *_ROOMS]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name in _ROOMS:
        value = import_module(f"rankscope.{name}")
    else:
        raise AttributeError(f"module 'rankscope' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
