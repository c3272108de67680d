"""``reproduce``: run claims in this process; saved results are reused."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from dataclasses import fields as dataclass_fields
from functools import partial
from pathlib import Path
from typing import Any, Final, overload

import polars as pl

from rankscope import results
from rankscope.arguments import checked
from rankscope.core.checks import whole
from rankscope.core.tabular import Tabular
from rankscope.errors import InputError, RankscopeError
from rankscope.experiments import Entry, Scale, entries, entry
from rankscope.numerals import plural
from rankscope.process import OnStep, silent
from rankscope.results import Result
from rankscope.run._engine import Run, RunOutcome, carry_out
from rankscope.run._status import ClaimRun, claim_run, claim_runs, over_seeds
from rankscope.run._store import NAME, OUTPUT_FOLDER, RunRecord, Store, digest_of
from rankscope.show import figures, report

SUMMARY: Final = "reproduce.html"
MOST_SEEDS: Final = 1000
SEED_STEP: Final = 1000
"""Difference of two seeds of a claim, so that claims that count up from a seed share no draws."""
Begin = Callable[[str], OnStep]
"""Called with the name of a phase; returns the callback for its progress."""


@checked
@dataclass(frozen=True)
class Reproduction:
    """The outcome of one claim: its result and files, or the failure in ``run``.

    >>> from rankscope.run import reproduce
    >>> claim, *_ = reproduce(["D8"], "out")
    >>> claim.entry.id, sorted(claim.files)
    ('D8', ['page', 'table'])
    """

    entry: Entry
    run: ClaimRun
    result: Result | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    from_before: bool = False  # whether the result was read from the folder


@checked
@dataclass(frozen=True, repr=False)
class Reproductions(Tabular, Sequence[Reproduction]):
    """The outcomes of several claims: one ``Reproduction`` per run, in order.

    >>> from rankscope.run import reproduce
    >>> reproduce(["D8"], "out").table.select("claim", "verdict").rows()
    [('D8', 'holds')]
    """

    runs: tuple[Reproduction, ...]

    @overload
    def __getitem__(self, index: int) -> Reproduction: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Reproduction, ...]: ...
    def __getitem__(self, index: int | slice) -> Reproduction | tuple[Reproduction, ...]:
        return self.runs[index]

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def table(self) -> pl.DataFrame:
        """One row per run: claim, verdict, verdict beyond the domain, seed, seconds and error."""
        rows = [
            {
                "claim": reproduction.entry.id,
                "verdict": reproduction.run.judgement and reproduction.run.judgement.verdict,
                "beyond": reproduction.run.beyond and reproduction.run.beyond.verdict,
                "statement": reproduction.entry.title,
                "seed": reproduction.run.seed,
                "scale": reproduction.run.scale,
                "seconds": reproduction.run.seconds,
                "from_before": reproduction.from_before,
                "failure": reproduction.run.failure or None,
            }
            for reproduction in self.runs
        ]
        return pl.DataFrame(rows, schema=_COLUMNS)

    def plot(self, metric: str | None = None) -> figures.Figure:
        """The share of checks that each claim met, or another ``metric``: ``seconds``."""
        rows = [
            (reproduction.entry.id, name, value)
            for reproduction in self.runs
            for name, value in (
                ("checks_met", _share_met(reproduction.run)),
                ("seconds", reproduction.run.seconds),
            )
            if value is not None
        ]
        schema = {"claim": pl.String, "metric": pl.String, "value": pl.Float64}
        table = (
            pl.DataFrame(rows, schema=schema, orient="row")
            .with_row_index("run")
            .cast({"run": pl.String})
        )
        return figures.by_axis(table, metric=metric or "checks_met", x="claim")

    def __repr__(self) -> str:
        verdicts = Counter(verdict or "failed" for verdict in self.table["verdict"])
        counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        return f"Reproductions({plural(len(self.runs), 'run')} of claims: {counts or 'none'})"


_COLUMNS: Final = {
    **dict.fromkeys(("claim", "verdict", "beyond", "statement"), pl.String),
    "seed": pl.Int64,
    "scale": pl.String,
    "seconds": pl.Float64,
    "from_before": pl.Boolean,
    "failure": pl.String,
}


def _share_met(run: ClaimRun) -> float | None:
    """The share of the checks of a claim, on its domain, that were met; None without any."""
    checks = run.judgement.checks if run.judgement is not None else {}
    return sum(checks.values()) / len(checks) if checks else None


@checked
def reproduce(
    ids: Sequence[str] = (),
    folder: str | Path = OUTPUT_FOLDER,
    *,
    scale: Scale = "quick",
    seeds: int = 1,
    fresh: bool = False,
    **options: Any,
) -> Reproductions:
    """Re-check claims by their ids, or all of them; their files and a summary go into ``folder``.

    >>> [claim.result.verdict for claim in reproduce(["D8"], "out")]
    ['holds']

    Results that the folder already has are read, unless ``fresh``. ``options`` are fields of the
    claims' configurations, such as ``seed``; a claim ignores fields that it does not have. Each
    claim runs with ``seeds`` seeds, a thousand apart, unless it is deterministic; ``over_seeds``
    then says whether its verdict is stable. If a claim fails, the failure is reported and the
    others continue.
    """
    chosen = [entry(id_, "claim") for id_ in ids] or list(entries("claim").values())
    fields_of: dict[Entry, dict[str, Any]] = {}
    for claim in chosen:
        names = {field.name for field in dataclass_fields(claim.module().Config)}
        if "seed" not in claim.options:  # deterministic
            names -= {"seed"}
        fields_of[claim] = {name: value for name, value in options.items() if name in names}
    for name in options:
        if not any(name in fields for fields in fields_of.values()):
            named = ", ".join(claim.id for claim in chosen)
            raise InputError(f"none of {named} has a field {name!r}.")
    done = reproductions(fields_of, folder, scale=scale, seeds=seeds, fresh=fresh)
    return Reproductions(tuple(done))


@checked
def reproductions(
    chosen: Mapping[Entry, Mapping[str, Any]],
    folder: str | Path,
    *,
    scale: Scale = "quick",
    seeds: int = 1,
    fresh: bool = False,
    redraw: bool = False,
    charts: bool = False,
    begin: Begin = lambda _: silent,
) -> Iterator[Reproduction]:
    """Run claims with the fields given for each; update the summary after each.

    The runs of a claim with several ``seeds`` are consecutive. With ``redraw``, pages (and with
    ``charts`` PNG files) are regenerated from saved results.
    """
    root = Path(folder)
    asked: dict[str, Any] = {"scale": scale, "fresh": fresh, "begin": begin}
    asked |= {"redraw": redraw, "charts": charts}
    whole("seeds", seeds, least=1, most=MOST_SEEDS)
    runs = (
        (claim, Run(claim.id, claim.id, {}, by_seed))
        for claim, fields in chosen.items()
        for by_seed in _by_seed(claim, scale, fields, seeds)
    )
    for claim, run in runs:
        outcome = carry_out(run, partial(_reproduced, claim, root, **asked), "this process")
        reproduction = outcome.result or Reproduction(claim, _failed(root, outcome, scale))
        with suppress(OSError, RankscopeError):  # a full disk: the next claim may be saved already
            write_summary(root)
        yield reproduction


def _by_seed(
    claim: Entry, scale: Scale, fields: Mapping[str, Any], seeds: int
) -> Iterator[dict[str, Any]]:
    """The fields with each seed; once if the claim is deterministic."""
    if seeds == 1 or "seed" not in claim.options:
        yield dict(fields)
        return
    first = claim.configuration(scale, **fields).seed
    yield from ({**fields, "seed": first + SEED_STEP * number} for number in range(seeds))


def write_summary(folder: Path) -> Path:
    """Write the page about all runs in a folder."""
    series = over_seeds(claim_runs(folder))
    return report.write_overview(entries("claim").values(), series, folder / SUMMARY)


def _reproduced(
    claim: Entry,
    folder: Path,
    run: Run,
    *,
    scale: Scale,
    fresh: bool,
    redraw: bool,
    charts: bool,
    begin: Begin,
) -> Reproduction:
    """Read a claim's result from the folder, or compute it and write its page."""
    config = claim.configuration(scale, **run.fields)
    stem, digest = claim.stem(config), config.digest(claim.id)
    noted = _noted(folder, claim.id)
    known = noted.get(stem)
    saved = None if fresh else _kept(folder / f"{stem}.parquet", claim, digest, known)
    files = _files(folder, stem)
    drawn = "page" in files and ("chart" in files or not charts) and not redraw
    if saved is not None and known is not None and drawn:
        if list(noted)[-1] != stem:  # the latest request is the latest verdict
            _note(folder, known)
        return Reproduction(claim, _shown(known), saved, files, from_before=True)
    started = time.perf_counter()
    result = saved or claim.run(config, begin(claim.id))
    seconds: float | None = time.perf_counter() - started
    if saved is not None:
        seconds = None if known is None else known.seconds
    series = replace(config, seed=0).digest(claim.id)
    ended = _ended(result, scale, series, seconds)
    try:
        files = report.write(result, folder, charts=charts, on_step=begin(f"{claim.id}, writing"))
        _note(folder, replace(ended, digest=digest_of(Path(files["table"]).read_bytes())))
    except (RankscopeError, OSError) as error:  # there is a result, but not all files
        unwritten = replace(_shown(ended), failure=str(error))
        return Reproduction(claim, unwritten, result, _files(folder, stem))
    return Reproduction(claim, _shown(ended), result, files, from_before=saved is not None)


def _kept(path: Path, claim: Entry, digest: str, noted: RunRecord | None) -> Result | None:
    """A saved result; None if its file cannot be read or belongs to another configuration."""
    try:
        if noted is not None and noted.digest != digest_of(path.read_bytes()):
            return None
        result = results.read(path)
        report.page(result)  # a result that cannot be shown is not usable
    except Exception:  # a damaged file can raise anything
        return None
    same = result.id == claim.id and result.provenance.get("digest") == digest
    return result if same and result.judgement is not None else None


def _files(folder: Path, stem: str) -> dict[str, str]:
    """The files of ``report.write`` that exist."""
    charts = [folder / f"{stem}.png", *sorted(folder.glob(f"{stem}-[0-9].png"))]
    named = {f"chart{path.stem.removeprefix(stem)}": path for path in charts}
    files = {"table": folder / f"{stem}.parquet", **named, "page": folder / f"{stem}.html"}
    return {what: str(path) for what, path in files.items() if path.is_file()}


def _noted(folder: Path, id_: str) -> dict[str, RunRecord]:
    """The recorded runs of a claim by key, the latest last; empty if they cannot be read."""
    if not (folder / NAME).is_file():
        return {}
    with suppress(RankscopeError), Store(folder, "reproduce") as store:
        runs = store.runs("experiment = ?", id_)
        return {run.key: run for run in runs if claim_run(run) is not None}
    return {}


def _note(folder: Path, run: RunRecord) -> None:
    """Record a run; a failure is recorded under the claim's id until a run succeeds."""
    folder.mkdir(parents=True, exist_ok=True)
    with Store(folder, "reproduce", create=True) as store:
        store.record(run)
        if not run.error:
            store.delete(run.experiment)


def _ended(result: Result, scale: Scale, series: str, seconds: float | None) -> RunRecord:
    figures = ([name, value] for name, value in result.key_figures.items() if math.isfinite(value))
    details = {
        "judgement": result.judgement and asdict(result.judgement),
        "beyond": result.beyond and asdict(result.beyond),
        "key_figure": next(figures, None),
    }
    seed = int(result.provenance["seed"]) if "seed" in entry(result.id).options else None
    settings = {"seed": seed, "scale": scale, "series": series}
    file = f"{result.stem}.parquet"
    return RunRecord(
        result.stem, result.id, settings, time.time(), seconds, file=file, details=details
    )


def _failed(folder: Path, outcome: RunOutcome, scale: Scale) -> ClaimRun:
    """Record a failed claim, if the folder is writable."""
    seed, id_ = outcome.run.fields.get("seed", 0), outcome.run.experiment
    settings = {"seed": seed if type(seed) is int else 0, "scale": scale, "series": ""}
    why: dict[str, Any] = {"error": outcome.error, "traceback": outcome.traceback}
    failed = RunRecord(id_, id_, settings, time.time(), outcome.seconds, **why)
    with suppress(RankscopeError, OSError):
        _note(folder, failed)
    return _shown(failed)


def _shown(run: RunRecord) -> ClaimRun:
    shown = claim_run(run)
    assert shown is not None
    return shown
