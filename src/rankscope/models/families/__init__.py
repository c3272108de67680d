"""Real models: one file per architecture, verified against the original when it is loaded."""

from rankscope.models.families.builtin import BUILTIN
from rankscope.models.families.cached import cached_folder
from rankscope.models.families.family import Family
from rankscope.models.families.loaded import BlockInput, Loaded
from rankscope.models.families.loading import FAMILIES, family_of, load, verify
from rankscope.models.families.verification import Verification

__all__ = [
    "BUILTIN",
    "FAMILIES",
    "BlockInput",
    "Family",
    "Loaded",
    "Verification",
    "cached_folder",
    "family_of",
    "load",
    "verify",
]
