"""``reproduce``: claims re-checked one after the other, each kept, none computed twice."""

import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from dataclasses import fields as dataclass_fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rankscope import records
from rankscope.arguments import checked
from rankscope.errors import InputError, RankscopeError
from rankscope.experiments.catalogue import Entry, Scale, entries, entry
from rankscope.process.progress import OnStep, silent
from rankscope.results import Judgement, Result
from rankscope.run import _journal as journal
from rankscope.show import report

SUMMARY: Final = "reproduce.html"
Begin = Callable[[str], OnStep]
"""Called with what begins; gives the callback for its progress."""


@checked
@dataclass(frozen=True)
class Outcome:
    """What became of one claim: its result and files, or why it could not be run."""

    entry: Entry
    run: journal.Run
    result: Result | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    from_before: bool = False
    """Whether the result was read and not computed."""


@checked
def reproduce(
    ids: Sequence[str] = (),
    folder: str | Path = journal.FOLDER,
    *,
    scale: Scale = "quick",
    fresh: bool = False,
    **options: Any,
) -> list[Outcome]:
    """Re-check claims by their ids, or all of them; their files and a summary go into ``folder``.

    >>> [outcome.result.verdict for outcome in reproduce(["D8"], "out")]
    ['depends']

    What the folder already holds is read and not computed again, unless it is to be ``fresh``.
    ``options`` are fields of the claims' configurations, such as a seed; a claim that has no such
    field runs without it. A claim that fails to run is reported, and the others go on.
    """
    chosen = [entry(id_, "claim") for id_ in ids] or list(entries("claim").values())
    known = {each: _fields(each) for each in chosen}
    named = ", ".join(each.id for each in chosen)
    for name in options:
        if not any(name in names for names in known.values()):
            raise InputError(f"none of {named} has a field {name!r}.")
    fields = {
        each: {name: value for name, value in options.items() if name in names}
        for each, names in known.items()
    }
    return list(outcomes(fields, Path(folder), scale=scale, fresh=fresh))


def _fields(claim: Entry) -> set[str]:
    """What can be chosen about a claim: all its fields, but no seed where nothing is drawn."""
    names = {each.name for each in dataclass_fields(claim.module().Config)}
    return names if "seed" in claim.options else names - {"seed"}


@checked
def outcomes(
    chosen: Mapping[Entry, Mapping[str, Any]],
    folder: Path,
    *,
    scale: Scale = "quick",
    fresh: bool = False,
    redraw: bool = False,
    begin: Begin = lambda _: silent,
) -> Iterator[Outcome]:
    """Claims with the fields chosen for each, one by one; the summary is written after each."""
    for each, fields in chosen.items():
        started = time.perf_counter()
        try:
            outcome = _one(each, fields, folder, scale, fresh=fresh, redraw=redraw, begin=begin)
        except Exception as error:  # whatever it is, it must not cost the other claims
            seconds = time.perf_counter() - started
            seed = fields.get("seed", 0)
            outcome = Outcome(each, _failure(each, seed, scale, seconds, error))
            _note_failure(folder, outcome.run, error)
        with suppress(OSError, RankscopeError):  # a full disk: the next claim may be in the folder
            write_summary(folder)
        yield outcome


def _note_failure(folder: Path, run: journal.Run, error: Exception) -> None:
    """Write down that a claim failed, and for what we did not foresee where, as far as we can."""
    with suppress(OSError):
        journal.append(folder, run)
        if not isinstance(error, RankscopeError):
            where = "".join(traceback.format_exception(error))
            (folder / f"{run.id.lower()}-failure.txt").write_text(where, encoding="utf-8")


@checked
def write_summary(folder: Path) -> Path:
    """The page about every run in a folder, anew."""
    return report.write_overview(entries("claim").values(), journal.runs(folder), folder / SUMMARY)


def _one(
    claim: Entry,
    fields: Mapping[str, Any],
    folder: Path,
    scale: Scale,
    *,
    fresh: bool,
    redraw: bool,
    begin: Begin,
) -> Outcome:
    """A claim from the folder if it is there, else computed; pictures and page are drawn then."""
    config = claim.configuration(scale, **fields)
    stem = claim.stem(config)
    kept = None if fresh else _kept(folder / f"{stem}.parquet", claim, config.digest(claim.id))
    files = _files(folder, stem)
    before = journal.runs(folder)
    known = {run.stem: run for run in before}.get(stem)
    if kept is not None and known is not None and "report" in files and not redraw:
        if journal.last(before, claim.id) != known:  # what was asked for last is the last verdict
            journal.append(folder, known)
        return Outcome(claim, known, kept, files, from_before=True)
    started = time.perf_counter()
    result = kept or claim.run(config, begin(claim.id))
    seconds: float | None = time.perf_counter() - started
    if kept is not None:
        seconds = None if known is None else known.seconds
    run = _run(result, scale, seconds)
    try:
        files = report.write(result, folder, on_step=begin(f"{claim.id}, drawing"))
        journal.append(folder, run)
    except (RankscopeError, OSError) as error:  # the figures are there, though not all files
        run = replace(run, failure=str(error))
        return Outcome(claim, run, result, _files(folder, stem))
    return Outcome(claim, run, result, files, from_before=kept is not None)


def _kept(path: Path, claim: Entry, digest: str) -> Result | None:
    """A result from before; a file that cannot be read, or is about something else, is none."""
    try:
        result = records.read(path)
        report.page(result)  # what cannot be shown is as good as none
    except Exception:  # whatever a damaged file makes its readers raise
        return None
    same = result.id == claim.id and result.provenance.get("digest") == digest
    return result if same and result.judgement is not None else None


def _files(folder: Path, stem: str) -> dict[str, str]:
    """Those of ``report.write`` that are there."""
    charts = [folder / f"{stem}.png", *sorted(folder.glob(f"{stem}-[0-9].png"))]
    named = {f"chart{path.stem.removeprefix(stem)}": path for path in charts}
    files = {"table": folder / f"{stem}.parquet", **named, "report": folder / f"{stem}.html"}
    return {what: str(path) for what, path in files.items() if path.is_file()}


def _run(result: Result, scale: Scale, seconds: float | None) -> journal.Run:
    figures = ((k, v) for k, v in result.key_figures.items() if math.isfinite(v))
    return journal.Run(
        id=result.id,
        stem=result.stem,
        seed=int(result.provenance["seed"]),
        scale=scale,
        verdict=result.verdict_in_words,
        judgement=_plain(result.judgement),
        beyond=_plain(result.beyond),
        key_figure=next(figures, None),
        seconds=seconds,
        finished=_now(),
    )


def _failure(
    claim: Entry, seed: int, scale: Scale, seconds: float, error: Exception
) -> journal.Run:
    named = str(error) if isinstance(error, RankscopeError) else f"{type(error).__name__}: {error}"
    return journal.Run(
        claim.id, "", seed, scale, "", None, None, None, seconds, _now(), named.rstrip(".") + "."
    )


def _plain(judgement: Judgement | None) -> dict[str, str] | None:
    return None if judgement is None else asdict(judgement)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
