"""What people see: figures, pages, and the lab."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=("figures", "lab", "report", "words"),
)
