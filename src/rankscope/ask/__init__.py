"""Subjects of questions: a network or a model, its input, and the cost of an answer.

Used by the command line, sweeps and the Python functions. Names are loaded when first used;
``__init__.pyi`` lists them, ``__all__`` those that are public.
"""

import lazy_loader

__getattr__, __dir__, _ = lazy_loader.attach_stub(__name__, __file__)

__all__ = [
    "Model",
    "Setup",
    "Subject",
    "built_in",
    "by_name",
    "model_subject",
    "module_subject",
    "network_subject",
    "random_subject",
]
