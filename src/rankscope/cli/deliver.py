"""Results → files, terminal or JSON."""

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rankscope import figures, report, tables
from rankscope.cli.options import OutputOptions
from rankscope.errors import InputError
from rankscope.experiments import Claim, Diagnosis, PathStudy
from rankscope.experiments.study import Study
from rankscope.report.study import shown_metrics
from rankscope.report.terminal import show_findings, show_layers, show_lengths, show_study
from rankscope.tracing import Trace

_DEFAULT_FOLDER = Path("rankscope-output")


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A progress bar on standard error, so that standard output stays clean."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    shown = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def folder(target: OutputOptions) -> Path | None:
    """Where files go; None when only JSON is wanted.

    Made before any work is done, so that no result is lost to a folder that cannot be written.
    """
    if target.output is None and target.as_json:
        return None
    wanted = target.output or _DEFAULT_FOLDER
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output {wanted} cannot be made a folder: {error.strerror}.") from error
    if not os.access(wanted, os.W_OK):
        raise InputError(f"--output {wanted} cannot be written to.")
    return wanted


def trace(traced: Trace, *, folder: Path | None, as_json: bool) -> None:
    """The table as Parquet, its chart, and the means by layer."""
    files: dict[str, str] = {}
    if folder is not None:
        files["table"] = str(traced.save(folder / "trace.parquet"))
        files["chart"] = str(figures.save(traced.plot(), folder / "trace.html"))
    if as_json:
        _print_json(
            {"provenance": asdict(traced.provenance), "table": _rows(traced.table), "files": files}
        )
        return
    show_layers(tables.summary(traced.table), Console())
    _print_files(files)


def diagnosis(
    found: Diagnosis, *, title: str, about: Mapping[str, str], folder: Path | None, as_json: bool
) -> None:
    """The report, the table and the chart; then the findings in words."""
    provenance = {**found.provenance, **about}
    files: dict[str, str] = {}
    if folder is not None:
        chart = figures.by_layer(found.summary)
        files["table"] = str(tables.write(found.table, folder / "diagnose.parquet", provenance))
        files["chart"] = str(figures.save(chart, folder / "diagnose.png"))
        page = report.diagnosis_page(found.summary, found.findings, provenance, title=title)
        files["report"] = str(report.write_html(page, folder / "diagnose.html"))
    if as_json:
        _print_json(
            {
                "findings": [asdict(finding) for finding in found.findings],
                "summary": _rows(found.summary),
                "provenance": provenance,
                "files": files,
            }
        )
        return
    show_findings(found.summary, found.findings, Console())
    _print_files(files)


def claim(checked: Claim, *, folder: Path | None, as_json: bool) -> None:
    """The report, the table and the chart; then the verdict and what it rests on."""
    files: dict[str, str] = {}
    name = checked.id.lower()
    if folder is not None:
        chart = report.claim_chart(checked)
        path = folder / f"{name}.parquet"
        files["table"] = str(tables.write(checked.table, path, checked.provenance))
        files["chart"] = str(figures.save(chart, folder / f"{name}.png"))
        page = report.claim_page(checked)
        files["report"] = str(report.write_html(page, folder / f"{name}.html"))
    if as_json:
        shown = ("id", "statement", "source", "verdict", "reasons", "provenance")
        result = {key: getattr(checked, key) for key in shown}
        _print_json({**result, "summary": _rows(checked.summary), "files": files})
        return
    console = Console(highlight=False)
    console.print(f"{checked.id}  {checked.statement}  [bold]{checked.verdict}[/]")
    for reason in checked.reasons:
        console.print(f"  {reason}", markup=False)
    _print_files(files)


def paths(
    found: PathStudy, *, title: str, about: Mapping[str, str], folder: Path | None, as_json: bool
) -> None:
    """The report, the tables and the chart; then the shares by length."""
    found = replace(found, provenance={**found.provenance, **about})
    files: dict[str, str] = {}
    if folder is not None:
        chart = figures.by_length(found.summary)
        path = folder / "paths.parquet"
        files["table"] = str(tables.write(found.table, path, found.provenance))
        if found.heads is not None:
            path = folder / "heads.parquet"
            files["heads"] = str(tables.write(found.heads, path, found.provenance))
        files["chart"] = str(figures.save(chart, folder / "paths.png"))
        page = report.paths_page(found, title=title)
        files["report"] = str(report.write_html(page, folder / "paths.html"))
    if as_json:
        error = found.reconstruction_error
        _print_json(
            {
                "paths": found.paths,
                "reconstruction_error": None if math.isnan(error) else error,
                "sentence": found.sentence,
                "summary": _rows(found.summary),
                "heads": None if found.heads is None else _rows(found.heads),
                "provenance": dict(found.provenance),
                "files": files,
            }
        )
        return
    show_lengths(found.summary, Console())
    console = Console(highlight=False)
    console.print(f"\n{found.sentence} {report.exactness(found)}")
    _print_files(files)


def study(found: Study, *, folder: Path | None, as_json: bool) -> None:
    """The report, the table and the charts; then the medians and what they show."""
    files: dict[str, str] = {}
    if folder is not None:
        path = folder / f"{found.name}.parquet"
        files["table"] = str(tables.write(found.table, path, found.provenance))
        for number, chart in enumerate(report.study_charts(found), start=1):
            which = "" if number == 1 else f"-{number}"
            place = path.with_name(f"{found.name}{which}.png")
            files[f"chart{which}"] = str(figures.save(chart, place))
        page = report.study_page(found)
        files["report"] = str(report.write_html(page, path.with_suffix(".html")))
    if as_json:
        told = ("name", "title", "question", "sentences", "provenance")
        result = {key: getattr(found, key) for key in told}
        _print_json({**result, "summary": _rows(found.summary), "files": files})
        return
    console = Console(highlight=False)
    console.print(found.title, style="bold", markup=False)
    console.print(found.question, markup=False)
    console.print()
    show_study(found.summary, shown_metrics(found), console)
    for sentence in found.sentences:
        console.print(sentence.replace("**", ""), markup=False)  # bold on the page
    _print_files(files)


def _rows(table: pl.DataFrame) -> list[dict[str, Any]]:
    return table.to_dicts()


def _print_json(result: Mapping[str, Any]) -> None:
    json.dump(_finite(result), sys.stdout, allow_nan=False)
    sys.stdout.write("\n")


def _finite(value: Any) -> Any:
    """A value with only what JSON has: NaN as null, and infinities as the words "inf" and "-inf".

    Infinities are findings (minus infinity: all tokens exactly equal), so null would not do; and
    ``float`` reads both words back, in most languages.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


def _print_files(files: Mapping[str, str]) -> None:
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print()
    for what, path in files.items():
        console.print(f"{what:<7} {path}")
