"""One file per question: networks → table → verdict."""

from rankscope.experiments.claims import Claim
from rankscope.experiments.diagnose import DIAGNOSTIC_METRICS, Diagnosis, diagnose
from rankscope.experiments.findings import Finding, findings
from rankscope.experiments.path_study import PathStudy, path_study
from rankscope.experiments.variants import Reading, four_variants

__all__ = [
    "DIAGNOSTIC_METRICS",
    "Claim",
    "Diagnosis",
    "Finding",
    "PathStudy",
    "Reading",
    "diagnose",
    "findings",
    "four_variants",
    "path_study",
]
