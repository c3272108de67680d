"""rankscope shows how a transformer loses, or keeps, the differences between its tokens.

Names are loaded when first used, so that ``import rankscope`` and the command line start at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from rankscope.version import __version__

if TYPE_CHECKING:
    from rankscope.deep import deep_trace as deep_trace
    from rankscope.experiments import advise as advise
    from rankscope.experiments import compare as compare
    from rankscope.experiments import diagnose as diagnose
    from rankscope.families import Loaded as Loaded
    from rankscope.families import load as load
    from rankscope.families import verify as verify
    from rankscope.metrics import residual as residual
    from rankscope.network import Network as Network
    from rankscope.network import Spec as Spec
    from rankscope.paths import Path as Path
    from rankscope.paths import count_paths as count_paths
    from rankscope.paths import enumerate_paths as enumerate_paths
    from rankscope.paths import head_shares as head_shares
    from rankscope.paths import path_lengths as path_lengths
    from rankscope.paths import path_matrix as path_matrix
    from rankscope.paths import path_output as path_output
    from rankscope.paths import sample_paths as sample_paths
    from rankscope.paths import top_paths as top_paths
    from rankscope.paths import truncate as truncate
    from rankscope.prediction import Prediction as Prediction
    from rankscope.prediction import predict as predict
    from rankscope.reproduction import reproduce as reproduce
    from rankscope.results import Result as Result
    from rankscope.sweeping import sweep as sweep
    from rankscope.theory import Bounds as Bounds
    from rankscope.theory import bounds as bounds
    from rankscope.theory import design_values as design_values
    from rankscope.theory import find_equilibria as find_equilibria
    from rankscope.tracing import Trace as Trace
    from rankscope.tracing import trace as trace

_HOMES = {
    "Bounds": "rankscope.theory",
    "Loaded": "rankscope.families",
    "Network": "rankscope.network",
    "Spec": "rankscope.network",
    "Trace": "rankscope.tracing",
    "Path": "rankscope.paths",
    "Prediction": "rankscope.prediction",
    "Result": "rankscope.results",
    "advise": "rankscope.experiments",
    "bounds": "rankscope.theory",
    "compare": "rankscope.experiments",
    "count_paths": "rankscope.paths",
    "deep_trace": "rankscope.deep",
    "design_values": "rankscope.theory",
    "diagnose": "rankscope.experiments",
    "enumerate_paths": "rankscope.paths",
    "find_equilibria": "rankscope.theory",
    "head_shares": "rankscope.paths",
    "load": "rankscope.families",
    "path_lengths": "rankscope.paths",
    "path_matrix": "rankscope.paths",
    "path_output": "rankscope.paths",
    "predict": "rankscope.prediction",
    "reproduce": "rankscope.reproduction",
    "residual": "rankscope.metrics",
    "sample_paths": "rankscope.paths",
    "sweep": "rankscope.sweeping",
    "top_paths": "rankscope.paths",
    "trace": "rankscope.tracing",
    "truncate": "rankscope.paths",
    "verify": "rankscope.families",
}
_ROOMS = (
    "deep",
    "errors",
    "experiments",
    "families",
    "figures",
    "masks",
    "metric_catalogue",
    "metrics",
    "network",
    "paths",
    "prediction",
    "records",
    "report",
    "results",
    "sweeping",
    "tables",
    "text",
    "theory",
    "tracing",
    "training",
)

__all__ = ["__version__", *_HOMES, *_ROOMS]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name in _ROOMS:
        value = import_module(f"rankscope.{name}")
    else:
        raise AttributeError(f"module 'rankscope' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
