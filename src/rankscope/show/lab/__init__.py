"""The lab: a local page for exploring a small network interactively.

Needs the extra ``rankscope[lab]``: Starlette and uvicorn. ``serve`` is loaded when first used,
because the worker processes import this package and need neither a server nor charts.
"""

from typing import TYPE_CHECKING

from rankscope.process import optional_packages

if TYPE_CHECKING:
    from rankscope.show.lab._server import serve as serve

__all__ = ["serve"]


def __getattr__(name: str) -> object:
    if name != "serve":
        raise AttributeError(f"module 'rankscope.show.lab' has no attribute {name!r}")
    with optional_packages():
        from rankscope.show.lab._server import serve

    return serve
