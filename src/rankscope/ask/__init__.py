"""Subjects of questions: a network or a model, its input, and the cost of an answer.

Used by the command line, sweeps and the Python functions. Names are loaded when first used;
``__init__.pyi`` lists them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
