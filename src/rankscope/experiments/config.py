"""The configuration of a run, as one frozen value with a digest."""

from dataclasses import dataclass, fields
from typing import Any

from rankscope.arguments import check_fields
from rankscope.ask import Subject
from rankscope.core.checks import number, whole
from rankscope.process import fingerprint, plain, versions
from rankscope.version import __version__

_MOST = 1_000_000


@dataclass(frozen=True)
class Config:
    """Base class of the configurations of experiments; each has at least a seed.

    Two runs whose configurations are equal give the same numbers.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        """Check types, finite numbers and counts."""
        check_fields(self)
        whole("seed", self.seed, least=0)
        for field in fields(self):
            if field.name != "seed":
                _check_numbers(field.name, getattr(self, field.name))

    def describe(self) -> dict[str, Any]:
        """Every field, in what JSON has."""
        return {field.name: plain(getattr(self, field.name)) for field in fields(self)}

    def digest(self, experiment: str) -> str:
        """Twelve hex digits that name a run: the experiment, every field, this version."""
        return fingerprint([experiment, __version__, self.describe()])

    def warnings(self) -> tuple[str, ...]:
        """Warnings about the input: none here, see ``Question``."""
        return ()

    def provenance(self, experiment: str) -> dict[str, Any]:
        """The provenance of a result."""
        return {
            "experiment": experiment,
            "digest": self.digest(experiment),
            "seed": self.seed,
            "config": self.describe(),
            "versions": versions(),
        }


@dataclass(frozen=True)
class Question:
    """Base class of the configurations of questions: the subject, and options in subclasses."""

    subject: Subject

    def __post_init__(self) -> None:
        check_fields(self)

    def describe(self) -> dict[str, Any]:
        """Every option, in what JSON has."""
        options = [field.name for field in fields(self) if field.name != "subject"]
        return {name: plain(getattr(self, name)) for name in options}

    def warnings(self) -> tuple[str, ...]:
        """Warnings about the input."""
        return () if self.subject.check is None else self.subject.check.warnings()

    def digest(self, experiment: str) -> str:
        """Twelve hex digits that name a run: question, subject, every option, this version."""
        return fingerprint([experiment, __version__, self.subject.digest(), self.describe()])

    def provenance(self, experiment: str) -> dict[str, Any]:
        """The provenance of an answer; entries of the subject come first."""
        described = self.describe()
        config = {"config": described} if described else {}
        digest = self.digest(experiment)
        return {"experiment": experiment, "digest": digest, **self.subject.provenance(), **config}


def _check_numbers(name: str, value: object, *, least: int = 1, most: int = _MOST) -> None:
    """Raise unless numbers are finite and counts are within their limits."""
    if isinstance(value, float):
        number(name, value)
    elif isinstance(value, int) and not isinstance(value, bool):
        whole(name, value, least=least, most=most)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_numbers(name, item, least=0, most=1000 * _MOST)
