"""What is asked about: a network or a model, what it reads, and what an answer will cost.

The command line, a sweep's grid and the Python functions all come through here. Names are loaded
when first used; ``__init__.pyi`` lists them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
