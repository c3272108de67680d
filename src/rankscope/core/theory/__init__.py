"""What can be proved or computed without measuring: bounds, masks as graphs, equilibria.

Three rooms: ``residual_bounds`` (collapse with depth), ``graphs`` (collapse under a mask) and
``equilibria`` (where normalised networks end). What users need of them is exported here. No room
has the name of a function, so that ``theory.bounds`` is the function in any import order.
"""

from rankscope.core.theory.equilibria import (
    Designs,
    Equilibria,
    Equilibrium,
    EveryRank,
    Stability,
    StableSearch,
    design_values,
    equilibrium_at,
    every_rank,
    find_equilibria,
    norm_preimage,
    stability_of,
    stable_search,
    step_jacobian,
)
from rankscope.core.theory.graphs import (
    Ergodicity,
    GraphFacts,
    a_priori_log_decay,
    a_priori_log_loss,
    a_priori_rate,
    class_weights,
    ergodicity,
    graph_facts,
    limit_weights,
    perron_weights,
    second_eigenvalue,
    second_modulus,
    smallest_allowed_weight,
)
from rankscope.core.theory.residual_bounds import (
    Bounds,
    LayerBounds,
    bounds,
    keeping_network,
    residual_preserving_network,
)

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
    "a_priori_log_loss",
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
    "limit_weights",
    "norm_preimage",
    "perron_weights",
    "residual_preserving_network",
    "second_eigenvalue",
    "second_modulus",
    "smallest_allowed_weight",
    "stability_of",
    "stable_search",
    "step_jacobian",
]
