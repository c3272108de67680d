"""Scaled arithmetic and the plain number formats that are shown beside it."""

from collections.abc import Mapping
from typing import Final

import torch

from rankscope.results import Role

SCALED: Final = "scaled"
FORMATS: Final[Mapping[str, torch.dtype]] = {"float64": torch.float64, "float32": torch.float32}
FLOORS: Final[Mapping[str, Role]] = dict.fromkeys(FORMATS, "floor")
"""What plain formats are in a chart beside the true curve: where each of them ends."""
