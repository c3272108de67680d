"""Masks as graphs: who reaches whom, how fast attention under a mask forgets, and what remains."""

from rankscope.core.theory.graphs._ergodicity import Ergodicity, ergodicity
from rankscope.core.theory.graphs._facts import GraphFacts, graph_facts
from rankscope.core.theory.graphs._limits import class_weights, limit_weights, perron_weights
from rankscope.core.theory.graphs._rates import (
    a_priori_log_decay,
    a_priori_log_loss,
    a_priori_rate,
    second_eigenvalue,
    second_modulus,
    smallest_allowed_weight,
)

__all__ = [
    "Ergodicity",
    "GraphFacts",
    "a_priori_log_decay",
    "a_priori_log_loss",
    "a_priori_rate",
    "class_weights",
    "ergodicity",
    "graph_facts",
    "limit_weights",
    "perron_weights",
    "second_eigenvalue",
    "second_modulus",
    "smallest_allowed_weight",
]
