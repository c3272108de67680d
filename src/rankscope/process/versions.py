"""The versions a figure's provenance names."""

import platform
from functools import cache
from importlib.metadata import version

from rankscope.version import __version__


def versions() -> dict[str, str]:
    """What software a figure was made with."""
    return {
        "rankscope": __version__,
        "torch": _torch(),
        "python": platform.python_version(),
    }


@cache
def _torch() -> str:
    """Read once: the files of an installed package take longer than a small trace."""
    return version("torch")
