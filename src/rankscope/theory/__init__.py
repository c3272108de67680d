"""What theory promises: bounds with their conditions, masks as graphs, equilibria."""

from rankscope.theory.equilibria._design import design_values, norm_preimage
from rankscope.theory.equilibria._equilibrium import Equilibrium, equilibrium_at
from rankscope.theory.equilibria._every_rank import EveryRank, every_rank
from rankscope.theory.equilibria._find import Equilibria, find_equilibria
from rankscope.theory.equilibria._search import Designs, StableSearch, stable_search
from rankscope.theory.equilibria._stability import Stability, stability_of, step_jacobian
from rankscope.theory.graphs._facts import GraphFacts, graph_facts
from rankscope.theory.graphs._rates import (
    Ergodicity,
    a_priori_log_decay,
    a_priori_rate,
    class_weights,
    ergodicity,
    perron_weights,
    smallest_allowed_weight,
)
from rankscope.theory.residual_bounds._network import bounds
from rankscope.theory.residual_bounds._residual_preserving import keeping_network
from rankscope.theory.residual_bounds._result import Bounds, LayerBounds

__all__ = [
    "Bounds",
    "Designs",
    "Equilibria",
    "Equilibrium",
    "Ergodicity",
    "EveryRank",
    "GraphFacts",
    "LayerBounds",
    "Stability",
    "StableSearch",
    "a_priori_log_decay",
    "a_priori_rate",
    "bounds",
    "class_weights",
    "design_values",
    "equilibrium_at",
    "ergodicity",
    "every_rank",
    "find_equilibria",
    "graph_facts",
    "keeping_network",
    "norm_preimage",
    "perron_weights",
    "smallest_allowed_weight",
    "stability_of",
    "stable_search",
    "step_jacobian",
]
