"""What there is to run: a light catalogue, and one file per question, claim and study.

Names are loaded when first used, so that the catalogue can be read without importing torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankscope.experiments.catalogue import CATALOGUE as CATALOGUE
    from rankscope.experiments.catalogue import Entry as Entry
    from rankscope.experiments.catalogue import run as run
    from rankscope.experiments.models import Case as Case
    from rankscope.experiments.questions.advise import advise as advise
    from rankscope.experiments.questions.compare import compare as compare
    from rankscope.experiments.questions.diagnose import diagnose as diagnose
    from rankscope.experiments.questions.paths import path_study as path_study
    from rankscope.experiments.subject import Subject as Subject
    from rankscope.experiments.variants import Reading as Reading
    from rankscope.experiments.variants import four_variants as four_variants
    from rankscope.results import Finding as Finding
    from rankscope.results import Result

    Claim = Diagnosis = PathStudy = Result

_HOMES = {
    "CATALOGUE": "catalogue",
    "Case": "models",
    "Entry": "catalogue",
    "Reading": "variants",
    "Subject": "subject",
    "advise": "questions.advise",
    "compare": "questions.compare",
    "diagnose": "questions.diagnose",
    "four_variants": "variants",
    "path_study": "questions.paths",
    "run": "catalogue",
}
_NOW_RESULTS = ("Claim", "Diagnosis", "PathStudy")
"""Names that were types of their own and are now the one result."""

__all__ = [*_HOMES, "Finding", *_NOW_RESULTS]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'rankscope.experiments' has no attribute {name!r}")
    home = f"rankscope.experiments.{_HOMES[name]}" if name in _HOMES else "rankscope.results"
    value = getattr(import_module(home), "Result" if name in _NOW_RESULTS else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
