"""rankscope shows how a transformer loses, or keeps, the differences between its tokens.

Names are loaded when first used, so that ``import rankscope`` and the command line start at once;
``__init__.pyi`` lists them.
"""

import lazy_loader

from rankscope.version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
