"""Bounds, graphs and equilibria."""

import torch
from table import add
from things import MASK, PURE, SPHERE, P, X
from torch import nn

from rankscope.core import theory

add("theory.bounds", theory.bounds, network=PURE, x=X, token_mask=MASK)
add("theory.a_priori_log_decay", theory.a_priori_log_decay, epsilon=0.1, radius=2.0)
add("theory.a_priori_log_loss", theory.a_priori_log_loss, epsilon=0.1, radius=2.0)
add("theory.a_priori_rate", theory.a_priori_rate, epsilon=torch.tensor([0.1]), radius=2.0)
for one in ("class_weights", "perron_weights", "second_modulus"):
    add(f"theory.{one}", getattr(theory, one), attention=P[0, 0])
add(
    "theory.smallest_allowed_weight",
    theory.smallest_allowed_weight,
    attention=P,
    allowed=torch.ones(3, 3) > 0,
)
add("theory.ergodicity", theory.ergodicity, matrices=[P[:, 0], P[:, 1]], token_mask=None)
add("theory.limit_weights", theory.limit_weights, matrices=[P[0, 0].double()], classes=[[0, 1, 2]])
add("theory.graph_facts", theory.graph_facts, mask="causal", tokens=4)
add("theory.second_eigenvalue", theory.second_eigenvalue, mask="window:1", tokens=4)
add(
    "theory.design_values",
    theory.design_values,
    x=torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64),
    network=SPHERE.with_mask("causal"),
    c=1.5,
)
add(
    "theory.norm_preimage",
    theory.norm_preimage,
    norm=nn.LayerNorm(4),
    x=nn.LayerNorm(4)(X[0]),
    c=2.0,
)
add(
    "theory.equilibrium_at",
    theory.equilibrium_at,
    network=SPHERE,
    x=torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64),
    polish=False,
)
add(
    "theory.find_equilibria",
    theory.find_equilibria,
    network=SPHERE,
    tokens=2,
    starts=2,
    extra_starts=torch.eye(2, dtype=torch.float64)[None],
    seed=0,
    steps=3,
    tolerance=1e-8,
)
add(
    "theory.step_jacobian",
    theory.step_jacobian,
    network=SPHERE,
    x=torch.eye(2, dtype=torch.float64),
)
add("theory.stability_of", theory.stability_of, jacobian=torch.eye(4, dtype=torch.float64) / 2)
add("theory.every_rank", theory.every_rank, tokens=2, growth=4.0)
add("theory.stable_search", theory.stable_search, tokens=(2,), draws=2, descents=1, steps=2, seed=0)
add(
    "theory.residual_preserving_network",
    theory.residual_preserving_network,
    layers=2,
    width=4,
    kept=1,
    heads=1,
    strength=1.0,
    values=0.5,
    seed=0,
)
EVERY = theory.every_rank(2)
STABILITY = theory.Stability(0.5, 0.4, 0.6)
EQUILIBRIUM = EVERY.equilibria[0]
BOUNDS = theory.bounds(PURE, X)
add("theory.Stability", theory.Stability, radius=0.5, lower=0.4, upper=0.6)
add(
    "theory.Equilibrium",
    theory.Equilibrium,
    x=X[0],
    rank=1,
    collapsed=True,
    residual=0.0,
    distance=0.0,
    stability=STABILITY,
    basin=0.5,
    basin_error=0.1,
)
add("theory.EveryRank", theory.EveryRank, eigenvalues=EVERY.eigenvalues, equilibria=(EQUILIBRIUM,))
add(
    "theory.Equilibria",
    theory.Equilibria,
    equilibria=(EQUILIBRIUM,),
    starts=1,
    settled=1,
    cycles=(),
    diverged=0,
    wandering=0,
)
add(
    "theory.Designs",
    theory.Designs,
    mask="causal",
    attention="uniform",
    tokens=2,
    drawn=1,
    drawn_stable=0,
    descended=1,
    descended_stable=0,
    radius=1.0,
    query_key=torch.eye(2),
    values=torch.eye(2),
    best=EQUILIBRIUM,
)
add(
    "theory.StableSearch",
    theory.StableSearch,
    designs=theory.stable_search(tokens=(2,), draws=2, descents=1, steps=2).designs,
)
add("theory.Bounds", theory.Bounds, layers=BOUNDS.layers)
add("theory.LayerBounds", theory.LayerBounds, **vars(BOUNDS.layers[0]))
add("theory.Ergodicity", theory.Ergodicity, coefficients=X[0], log_products=X[0])
add("theory.GraphFacts", theory.GraphFacts, **vars(theory.graph_facts("causal", 3)))
