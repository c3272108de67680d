"""Where a model's weights are and in which form: named, checked and turned into plain numbers.

Names are loaded when first used, and Transformers with them; ``__init__.pyi`` lists them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
