"""The catalogue of experiments, read from the first statement of each file.

An experiment is one file in ``claims``, ``studies`` or ``questions``; files are discovered. ``ENTRY
= kit.claim(...)`` consists of literals, so that help texts, listings and the README are generated
without importing the module.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args, runtime_checkable

from rankscope.arguments import checked
from rankscope.ask import Asks
from rankscope.errors import InputError
from rankscope.metric_catalogue import Metric
from rankscope.process import OnStep, silent, stem

if TYPE_CHECKING:
    import polars as pl

    from rankscope.results import Result

Kind = Literal["claim", "study", "question"]
Scale = Literal["quick", "paper"]
"""Sizes that a laptop computes in minutes, or those of the papers."""
_FOLDERS: Final = {"claim": "claims", "study": "studies", "question": "questions"}


@runtime_checkable
class Traceable(Protocol):
    """A configuration that can describe itself for the provenance."""

    def digest(self, experiment: str) -> str: ...

    def provenance(self, experiment: str) -> dict[str, Any]: ...

    def warnings(self) -> tuple[str, ...]: ...


@checked
@dataclass(frozen=True)
class Entry:
    """One experiment: its id, texts and options; see ``kit``.

    >>> from rankscope.experiments import entry
    >>> claim = entry("D8")
    >>> claim.kind, claim.source
    ('claim', 'Dong et al. 2021, figure 5')
    """

    id: str
    kind: Kind
    title: str
    """The statement of a claim; the subject of a study or a question."""
    question: str = ""
    """The question that the result answers; empty if it depends on the subject."""
    source: str = ""
    domain: str = ""
    """The domain for which a claim was stated and on which it is judged first."""
    beyond: str = ""
    """The further domain on which it is judged, if any."""
    options: tuple[str, ...] = ("seed",)
    """Fields of its configuration that the command line may set."""
    seconds: float = 0.0
    """Duration at default sizes on two cores of a laptop; 0 if it varies."""
    small: bool = False
    """Whether its tensors are so small that several threads would be slower."""
    metrics: tuple[Metric, ...] = ()
    """Descriptions of metrics that only this experiment measures."""
    asks: Asks = field(default_factory=Asks)
    """How its subject differs from those of other questions."""

    def module(self) -> Any:
        """Import the module."""
        name = self.id.lower().replace("-", "_")
        return import_module(f"rankscope.experiments.{_FOLDERS[self.kind]}.{name}")

    def configuration(self, scale: Scale = "quick", **fields: Any) -> Any:
        """Its configuration at a scale; ``PAPER`` in its module has the papers' sizes."""
        if scale not in get_args(Scale):
            scales = ", ".join(get_args(Scale))
            raise InputError(f"there is no scale {scale!r}; choose {scales}.")
        module = self.module()
        sizes = getattr(module, "PAPER", {}) if scale == "paper" else {}
        known = [field.name for field in dataclass_fields(module.Config)]
        for name in fields:
            if name not in known:
                raise InputError(f"{self.id} has no option {name!r}; it has {', '.join(known)}.")
        return module.Config(**{**sizes, **fields})

    def run(self, config: Traceable, on_step: OnStep = silent) -> "Result":
        """Run it with a configuration."""
        *_, result = self.results(config, on_step)
        return result

    def results(self, config: Traceable, on_step: OnStep = silent) -> "Iterator[Result]":
        """Run it, and yield its answer as soon as it is known, if that is before its chapters.

        The last result is the whole.
        """
        from rankscope.experiments import kit
        from rankscope.process import one_thread

        with one_thread() if self.small else nullcontext():
            yield from kit.results(self, config, on_step)

    def stem(self, config: Traceable) -> str:
        """The name of the files of a run, known before it runs."""
        return stem(self.id, config.digest(self.id))

    def provenance(self, config: Traceable, **more: str | Mapping[str, str]) -> dict[str, Any]:
        """The provenance of a result; empty entries of ``more`` are omitted."""
        return config.provenance(self.id) | {key: value for key, value in more.items() if value}

    def result(
        self,
        config: Traceable,
        *,
        sentences: Iterable[str],
        table: "pl.DataFrame",
        question: str = "",
        title: str = "",
        about: Mapping[str, str | Mapping[str, str]] | None = None,
        notes: Mapping[str, str] | None = None,
        **others: Any,
    ) -> "Result":
        """A result of this experiment; ``others`` are the remaining fields of a ``Result``.

        The title of an answer to a question is the name of its subject. ``about`` are further
        entries of the provenance; ``notes`` are doubts by case, which are added to the sentences
        and the provenance.
        """
        from rankscope.results import Result

        noted = notes or {}
        subject = getattr(config, "subject", None)
        warnings = dict.fromkeys((*config.warnings(), *others.pop("warnings", ())))
        if labels := others.pop("labels", ()):
            others["labels"] = (*labels, *["note"] * len(noted))
        return Result(
            self.id,
            title or (subject.name if subject else self.title),
            question or self.question or self.title,
            (*sentences, *(f"Note on {case}: {note}." for case, note in noted.items())),
            table,
            self.provenance(config, **(about or {}), notes=noted),
            self.source,
            warnings=tuple(warnings),
            metrics=(*self.metrics, *others.pop("metrics", ())),
            **others,
        )


def claim(id_: str, title: str, *, small: bool = True, **fields: Any) -> Entry:
    """The entry of a claim: a statement that is judged by measurements."""
    return Entry(id_, "claim", title, small=small, **fields)


def study(id_: str, title: str, **fields: Any) -> Entry:
    """The entry of a study of many networks, without a verdict."""
    return Entry(id_, "study", title, **fields)


def question(id_: str, title: str, **fields: Any) -> Entry:
    """The entry of a question about a user's network or design."""
    return Entry(id_, "question", title, **fields)


_CALLS: Final[Mapping[str, Callable[..., Any]]] = {
    "claim": claim,
    "study": study,
    "question": question,
    "Metric": Metric,
    "Asks": Asks,
}
_STATEMENT: Final = re.compile(r"^ENTRY = kit\.\w+\(.*?\)$", re.DOTALL | re.MULTILINE)


def read_entry(source: str) -> Entry:
    """Read the entry at the beginning of a module's source.

    >>> read_entry('ENTRY = kit.study("mine", "What mine shows", seconds=2)').seconds
    2
    """
    statement = _STATEMENT.search(source)
    if statement is None:
        raise InputError("an experiment begins with ENTRY = kit.claim(...), of literals alone.")
    assignment = ast.parse(statement[0]).body[0]
    assert isinstance(assignment, ast.Assign)
    entry = _literal(assignment.value)
    assert isinstance(entry, Entry)
    return entry


def _literal(node: ast.expr) -> Any:
    """Evaluate a literal, or one of the calls allowed in an entry."""
    if isinstance(node, ast.Tuple):
        return tuple(_literal(element) for element in node.elts)
    if not isinstance(node, ast.Call):
        return ast.literal_eval(node)
    assert isinstance(node.func, ast.Attribute)
    keywords = {keyword.arg or "": _literal(keyword.value) for keyword in node.keywords}
    return _CALLS[node.func.attr](*map(_literal, node.args), **keywords)


def _files() -> Iterable[Path]:
    """The files of all experiments, sorted by kind, letter and number."""

    def order(path: Path) -> tuple[str, int]:
        letters = path.stem.rstrip("0123456789")
        return letters, int(path.stem[len(letters) :] or 0)

    for folder in _FOLDERS.values():
        paths = (Path(__file__).parent / folder).glob("[a-z]*.py")
        yield from sorted(paths, key=order)


ENTRIES: Final = tuple(read_entry(path.read_text(encoding="utf-8")) for path in _files())
CATALOGUE: Final[dict[str, Entry]] = {entry.id: entry for entry in ENTRIES}


@checked
def entries(kind: Kind) -> dict[str, Entry]:
    """All entries of one kind, by id.

    >>> from rankscope.experiments import entries
    >>> "D8" in entries("claim"), "diagnose" in entries("question")
    (True, True)
    """
    return {entry.id: entry for entry in ENTRIES if entry.kind == kind}


@checked
def entry(id_: str, kind: Kind | None = None) -> Entry:
    """The entry of an id, ignoring case; raises if it is unknown.

    >>> from rankscope.experiments import entry
    >>> entry("d8").id
    'D8'
    """
    known = CATALOGUE if kind is None else entries(kind)
    by_lower = {name.lower(): name for name in known}
    if id_.lower() not in by_lower:
        raise InputError(f"there is no {kind or 'experiment'} {id_!r}; choose {', '.join(known)}.")
    return known[by_lower[id_.lower()]]


@checked
def run(
    id_: str, *, scale: Scale = "quick", on_step: OnStep | None = None, **options: Any
) -> "Result":
    """Run an experiment by its id; ``options`` are fields of its configuration.

    >>> run("D8").verdict
    'holds'
    """
    experiment = entry(id_)
    return experiment.run(experiment.configuration(scale, **options), on_step or silent)
