"""Real models: one file per architecture, verified against the original when it is loaded."""

from rankscope.families.builtin import BUILTIN
from rankscope.families.cached import cached_folder
from rankscope.families.family import Family
from rankscope.families.loaded import BlockInput, Loaded
from rankscope.families.loading import FAMILIES, family_of, load, verify
from rankscope.families.verification import Verification

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
