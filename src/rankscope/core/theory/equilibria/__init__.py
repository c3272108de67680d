"""Equilibria of a step: designed, found, of every rank, and whether they are stable."""

from rankscope.core.theory.equilibria._design import design_values, norm_preimage
from rankscope.core.theory.equilibria._equilibrium import Equilibrium, equilibrium_at
from rankscope.core.theory.equilibria._every_rank import EveryRank, every_rank
from rankscope.core.theory.equilibria._find import Equilibria, find_equilibria
from rankscope.core.theory.equilibria._search import Designs, StableSearch, stable_search
from rankscope.core.theory.equilibria._stability import Stability, stability_of, step_jacobian

__all__ = [
    "Designs",
    "Equilibria",
    "Equilibrium",
    "EveryRank",
    "Stability",
    "StableSearch",
    "design_values",
    "equilibrium_at",
    "every_rank",
    "find_equilibria",
    "norm_preimage",
    "stability_of",
    "stable_search",
    "step_jacobian",
]
