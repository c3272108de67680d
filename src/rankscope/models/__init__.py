"""Real models, text for them to read, and small ones trained here."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=("calls", "checkpoints", "families", "text", "training"),
)
