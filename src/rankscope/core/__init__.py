"""Metrics, networks and theory; depends only on torch, NumPy and jaxtyping."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=("deep", "masks", "metrics", "network", "paths", "prediction", "theory", "tracing"),
)
