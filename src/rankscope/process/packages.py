"""Optional packages: what installs each one, and one error for a package that is missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from rankscope.errors import MissingPackageError

REQUIREMENTS: Final = {
    "accelerate": "rankscope[hf]",
    "altair": "rankscope[plot]",
    "gguf": "gguf",
    "huggingface_hub": "rankscope[hf]",
    "lightning": "rankscope[lightning]",
    "pandas": "pandas",
    "ray": "rankscope[ray]",
    "rich": "rankscope[plot]",
    "safetensors": "rankscope[hf]",
    "scipy": "rankscope[theory]",
    "starlette": "rankscope[lab]",
    "transformers": "rankscope[hf]",
    "typer": "rankscope[cli]",
    "uvicorn": "rankscope[lab]",
    "vl_convert": "rankscope[plot]",
}
"""What to install for each optional package, by the name under which it is imported."""
DISTRIBUTIONS: Final = (
    *("torch", "numpy", "jaxtyping", "polars", "jinja2", "lazy-loader", "triton"),
    *(name.replace("_", "-").replace("vl-convert", "vl-convert-python") for name in REQUIREMENTS),
)
"""The packages whose versions matter, by the names under which they are installed."""


@contextmanager
def optional_packages() -> Iterator[None]:
    """In this context, importing an optional package that is missing says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in REQUIREMENTS:
            raise
        raise MissingPackageError(
            f"this needs {package}, which is not installed; run "
            f"pip install '{REQUIREMENTS[package]}' and try again."
        ) from None


def require(module: str) -> Any:
    """Import a module of an optional package."""
    with optional_packages():
        return import_module(module)


def is_installed(package: str) -> bool:
    """Whether a package can be imported; it is not imported."""
    return find_spec(package) is not None


def installed_version(distribution: str) -> str:
    """The version of an installed distribution, or "not installed"."""
    from importlib import metadata  # takes longer than the rest of this file

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
