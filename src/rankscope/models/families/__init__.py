"""Real models: recognised by their parts and verified against the original when loaded."""

from rankscope.models.families._architectures import FAMILIES, family_of
from rankscope.models.families._family import Family
from rankscope.models.families._family import outline as outline
from rankscope.models.families._loaded import BlockInput, Loaded
from rankscope.models.families._loaded import Unconverted as Unconverted
from rankscope.models.families._loading import check, load, verify
from rankscope.models.families._loading import load_any as load_any
from rankscope.models.families._sources import BUILTIN, cached_folder
from rankscope.models.families._verification import Verification

__all__ = [
    "BUILTIN",
    "FAMILIES",
    "BlockInput",
    "Family",
    "Loaded",
    "Verification",
    "cached_folder",
    "check",
    "family_of",
    "load",
    "verify",
]
