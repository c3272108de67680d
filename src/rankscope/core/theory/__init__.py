"""What can be proved or computed without measuring: bounds, masks as graphs, equilibria, laws.

Names in ``__all__`` are for users; the others that can be imported from here are what the rest of
rankscope is built with. ``thresholds`` says from where on something counts as collapse.
"""

from rankscope.core.theory import _thresholds as thresholds
from rankscope.core.theory._attention_products import (
    Ergodicity,
    a_priori_log_decay,
    a_priori_log_loss,
    a_priori_rate,
    class_weights,
    ergodicity,
    limit_weights,
    perron_weights,
    second_eigenvalue,
    second_modulus,
    smallest_allowed_weight,
)
from rankscope.core.theory._bounds import Bounds, LayerBounds, bounds
from rankscope.core.theory._bounds import Obstacle as Obstacle
from rankscope.core.theory._constructed import Departure as Departure
from rankscope.core.theory._constructed import TwoHeadLayer as TwoHeadLayer
from rankscope.core.theory._constructed import departure as departure
from rankscope.core.theory._constructed import expanding_network as expanding_network
from rankscope.core.theory._constructed import residual_preserving_network
from rankscope.core.theory._constructed import worst_departure_layer as worst_departure_layer
from rankscope.core.theory._designed_values import design_values, norm_preimage
from rankscope.core.theory._equilibrium import (
    Equilibrium,
    Stability,
    equilibrium_at,
    stability_of,
    step_jacobian,
)
from rankscope.core.theory._find_equilibria import Equilibria, find_equilibria
from rankscope.core.theory._graph_facts import GraphFacts, graph_facts
from rankscope.core.theory._laws import LEVEL as LEVEL
from rankscope.core.theory._laws import SMOOTH as SMOOTH
from rankscope.core.theory._laws import UNEVEN as UNEVEN
from rankscope.core.theory._laws import Law as Law
from rankscope.core.theory._laws import LawCriteria as LawCriteria
from rankscope.core.theory._laws import LawKind as LawKind
from rankscope.core.theory._laws import Trend as Trend
from rankscope.core.theory._laws import as_stated as as_stated
from rankscope.core.theory._laws import growth_exponent as growth_exponent
from rankscope.core.theory._laws import late_exponent as late_exponent
from rankscope.core.theory._laws import later_factors as later_factors
from rankscope.core.theory._laws import law as law
from rankscope.core.theory._laws import levels_off as levels_off
from rankscope.core.theory._laws import power_exponent as power_exponent
from rankscope.core.theory._laws import steadiness as steadiness
from rankscope.core.theory._laws import trend as trend
from rankscope.core.theory._layer_bounds import SCORE_LIMIT as SCORE_LIMIT
from rankscope.core.theory._layer_bounds import CenteredTokens as CenteredTokens
from rankscope.core.theory._layer_bounds import HeadWeights as HeadWeights
from rankscope.core.theory._layer_bounds import a_priori_bound as a_priori_bound
from rankscope.core.theory._layer_bounds import find_best_center as find_best_center
from rankscope.core.theory._layer_bounds import head_weights as head_weights
from rankscope.core.theory._layer_bounds import log_beta as log_beta
from rankscope.core.theory._layer_bounds import log_differences as log_differences
from rankscope.core.theory._layer_bounds import log_paper_beta as log_paper_beta
from rankscope.core.theory._layer_bounds import row_gain as row_gain
from rankscope.core.theory._stable_search import (
    Designs,
    EveryRank,
    StableSearch,
    every_rank,
    stable_search,
)

__all__ = [
    "Bounds", "Designs", "Equilibria", "Equilibrium", "Ergodicity", "EveryRank", "GraphFacts",
    "LayerBounds", "Stability", "StableSearch", "a_priori_log_decay", "a_priori_log_loss",
    "a_priori_rate", "bounds", "class_weights", "design_values", "equilibrium_at", "ergodicity",
    "every_rank", "find_equilibria", "graph_facts", "limit_weights", "norm_preimage",
    "perron_weights", "residual_preserving_network", "second_eigenvalue", "second_modulus",
    "smallest_allowed_weight", "stability_of", "stable_search", "step_jacobian", "thresholds",
]  # fmt: skip
