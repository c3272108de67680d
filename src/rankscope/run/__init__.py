"""Runs of experiments over a grid of settings, with results saved as they finish.

Names are loaded when first used; ``__init__.pyi`` lists them, ``__all__`` those that are public.
"""

import lazy_loader

__getattr__, __dir__, _ = lazy_loader.attach_stub(__name__, __file__)

__all__ = [
    "ENGINES",
    "ClaimRun",
    "Engine",
    "Grid",
    "Inline",
    "Processes",
    "Progress",
    "RayEngine",
    "Reproduction",
    "Reproductions",
    "Run",
    "RunOutcome",
    "RunRecord",
    "Status",
    "Sweep",
    "SweepEstimate",
    "SweepPlan",
    "claim_runs",
    "estimate",
    "execute",
    "plan",
    "read_grid",
    "reproduce",
    "status",
    "sweep",
    "table",
]
