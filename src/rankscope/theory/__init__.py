"""What theory promises: bounds with their conditions, masks as graphs, equilibria."""

from rankscope.theory.design import design_values, norm_preimage
from rankscope.theory.equilibria import Equilibria, find_equilibria
from rankscope.theory.equilibria_search import Designs, StableSearch, stable_search
from rankscope.theory.equilibrium import Equilibrium, equilibrium_at
from rankscope.theory.every_rank import EveryRank, every_rank
from rankscope.theory.graph import GraphFacts, graph_facts
from rankscope.theory.keeping import keeping_network
from rankscope.theory.network_bounds import bounds
from rankscope.theory.promises import Bounds, LayerBounds
from rankscope.theory.rates import (
    Ergodicity,
    a_priori_log_decay,
    a_priori_rate,
    class_weights,
    ergodicity,
    perron_weights,
    smallest_allowed_weight,
)
from rankscope.theory.stability import Stability, stability_of, step_jacobian

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
