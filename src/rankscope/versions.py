"""The versions a figure's provenance names."""

import platform
from importlib.metadata import version

from rankscope.version import __version__


def versions() -> dict[str, str]:
    """What software a figure was made with."""
    return {
        "rankscope": __version__,
        "torch": version("torch"),
        "python": platform.python_version(),
    }
