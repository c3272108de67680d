"""One file per result, and all results as one table.

Equal runs have equal files: they contain nothing about this machine. They do not contain the values
on a grid's axes either, because the same run may be in another grid with other axes; ``table``
joins them. A file is valid if its digest matches the one in the database.
"""

import io
import json
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

import polars as pl

from rankscope import tables
from rankscope.arguments import checked
from rankscope.errors import InputError, KindError
from rankscope.numerals import list_words, setting_text
from rankscope.process import is_unfinished, settle, write_file
from rankscope.run._engine import AxisValue, Run, in_words
from rankscope.run._store import ASIDE, RESULTS, RunRecord, Store, digest_of, is_key

RUN: Final = "run"
_SCHEMA: Final[dict[str, type[pl.DataType]]] = {
    RUN: pl.String,
    **{name + tables.IN_RUN * (name == RUN): kind for name, kind in tables.COLUMNS.items()},
}
"""All columns that a result can have."""
_NOTE: Final = "rankscope.sweep"
_SMALL: Final = 2**16  # bytes; larger results are not held in memory for a table
# A panic of polars, which some damaged files and columns cause, is not an Exception.
_FAILING: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException, TypeError, ValueError)


def result_path(folder: Path, key: str) -> Path:
    """The file of a run's result."""
    return folder / RESULTS / f"{key}.parquet"


def to_bytes(run: Run, table: object) -> bytes:
    """The bytes of the file of a run's result; raises if the table is not valid."""
    if not isinstance(table, pl.DataFrame):
        raise KindError(f"the run returned a {type(table).__name__}, expected a polars DataFrame.")
    unknown = sorted(set(table.columns) - set(tables.COLUMNS))
    if unknown or not {"metric", "value"} <= set(table.columns):
        raise InputError(
            f"the run returned a table with {', '.join(table.columns) or 'no columns'}; expected "
            f"metric, value and any of {', '.join(tables.COLUMNS)}."
        )
    note = {"key": run.key, "experiment": run.experiment, "fields": dict(run.fields)}
    try:
        columns = {RUN: pl.repeat(run.key, len(table), dtype=pl.String, eager=True)}
        for name, kind in tables.COLUMNS.items():
            if name in table.columns:
                columns[name + tables.IN_RUN * (name == RUN)] = table[name].cast(kind)
        noted = json.dumps({run.key: note}, sort_keys=True)
        return tables.to_parquet(pl.DataFrame(columns), {_NOTE: noted})
    except _FAILING as error:
        raise InputError(f"the run's table cannot be written: {in_words(error)}") from error


def write(folder: Path, key: str, content: bytes) -> None:
    """Write the result of a run atomically."""
    write_file(result_path(folder, key), content, follow_link=False)


def described(key: str, content: bytes) -> dict[str, Any]:
    """The fields recorded about a result: its file, digest and columns."""
    columns = list(pl.read_parquet_schema(io.BytesIO(content)))
    file = f"{RESULTS}/{key}.parquet"
    return {"file": file, "digest": digest_of(content), "details": {"columns": columns}}


def tidy(store: Store) -> tuple[set[str], dict[str, str]]:
    """Move damaged results aside, record new ones, and delete records of missing ones.

    Call it only while holding the lock of the folder. Returns the keys of valid results, and the
    files moved aside with the reasons.
    """
    noted, done, aside = store.results(), set(), {}
    unrecorded: list[RunRecord] = []
    results = store.folder / RESULTS
    for path in sorted(results.iterdir()) if results.is_dir() else ():
        if is_unfinished(path):  # an earlier sweep was killed while writing
            path.unlink()
        elif path.suffix == ".parquet" and is_key(path.stem):
            problem, run = _check(path, noted.get(path.stem))
            if problem:
                aside[_move_aside(store.folder, path)] = problem
            else:
                done.add(path.stem)
                unrecorded += [] if run is None else [run]
    store.record(*unrecorded)
    store.delete(*(noted.keys() - done))
    return done, aside


def _check(path: Path, digest: str | None) -> tuple[str, RunRecord | None]:
    """The problem with a result, or ""; and its record, if it has none yet (no ``digest``).

    The driver may have been killed between writing the file and recording its digest.
    """
    key = path.stem
    try:
        content = _content(path)
        if digest is not None:
            return ("" if digest_of(content) == digest else "its content has changed"), None
        table, metadata = tables.from_parquet(path)
        notes = json.loads(metadata.get(_NOTE, "null"))
        if not isinstance(notes, dict) or set(notes) != {key}:
            return f"it belongs to {', '.join(notes or ()) or 'no run'}", None
    except OSError as error:
        return error.strerror or str(error), None
    except (*_FAILING, RecursionError) as error:
        return in_words(error), None
    ours = all(_SCHEMA.get(name) == kind for name, kind in table.schema.items())
    ours = ours and {RUN, "metric", "value"} <= set(table.columns)
    if not ours or not table[RUN].eq(key).all():
        return "it is not the table of a run", None
    settings = {"axes": {}, "fields": notes[key].get("fields", {})}
    ended, experiment = path.stat().st_mtime, str(notes[key].get("experiment"))
    return "", RunRecord(key, experiment, settings, ended, **described(key, content))


def _content(path: Path) -> bytes:
    """The bytes of a result; raises for links, and for pipes, which would block."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise OSError("it is not a regular file")
    return path.read_bytes()


def _move_aside(folder: Path, path: Path) -> str:
    """Move a damaged file to a folder of its own; return its new name."""
    aside = folder / ASIDE
    aside.mkdir(exist_ok=True)
    taken = {inside.name for inside in aside.iterdir()}
    name = next(name for number in count(1) if (name := f"{number}-{path.name}") not in taken)
    path.replace(aside / name)
    settle(aside)
    settle(path.parent)
    return f"{ASIDE}/{name}"


@checked
def table(folder: str | Path) -> pl.LazyFrame:
    """All results of the latest grid: columns ``run``, the axes, then those of the long table.

    >>> from rankscope.run import sweep, table
    >>> asked = {"heads": 1, "width": 8, "length": 4, "samples": 1, "axes": {"layers": [1, 2]}}
    >>> _ = sweep(asked, "depths", engine="inline")
    >>> table("depths").collect()["layers"].unique().sort().to_list()
    [1, 2]

    Rows are in the grid's order. If an axis has the name of a column of the long table, that
    column is renamed to ``<name>_in_run``. Results of runs that are not in the grid any more are
    excluded. The sweep may still be running: the table has the runs that are done. A file whose
    content has changed is an error.
    """
    with Store(Path(folder), "sweep") as store:
        points = store.points()
        runs = store.runs("status = 'done' AND key IN (SELECT key FROM points)")
    names = list(dict.fromkeys(name for _, axes in points for name in axes))
    axes = {name: axis_column([axes.get(name) for _, axes in points]) for name in names}
    keys = pl.Series([key for key, _ in points], dtype=pl.String)
    results = _scan(Path(folder), [run for run in runs if is_key(run.key)])
    columns = results.collect_schema().names()
    renamed = {name: name + tables.IN_RUN for name in columns if name in axes}
    asked = pl.LazyFrame({RUN: keys, **axes})
    return asked.join(results.rename(renamed), on=RUN, how="inner", maintain_order="left_right")


def _scan(folder: Path, runs: Sequence[RunRecord]) -> pl.LazyFrame:
    """All results concatenated, with the union of their columns; missing values are null."""
    small: list[bytes] = []
    large: list[Path] = []
    for run in runs:
        path = result_path(folder, run.key)
        try:
            content = _content(path)
            if digest_of(content) != run.digest:
                raise OSError("its content has changed")
        except OSError as error:
            raise InputError(
                f"{path} is damaged ({error.strerror or error}); start the sweep again to "
                "recompute it."
            ) from error
        if len(content) <= _SMALL:
            small.append(content)
        else:
            large.append(path)
    known = {name for run in runs for name in run.details.get("columns", ())}
    columns = [name for name in _SCHEMA if name in known or name in (RUN, "metric", "value")]
    schema = {name: _SCHEMA[name] for name in columns}
    sources: list[list[bytes] | list[Path]] = [small, large]
    frames = [
        pl.scan_parquet(files, schema=schema, missing_columns="insert", glob=False)
        for files in sources
        if files
    ]
    return pl.concat([pl.LazyFrame(schema=schema), *frames])


@checked
def with_settings(rows: pl.LazyFrame, only: Sequence[str]) -> pl.LazyFrame:
    """Filter a sweep's table by values of its axes, each given as ``AXIS=VALUE[,VALUE]``."""
    schema = rows.collect_schema()
    for choice in only:
        axis, equals, written = choice.partition("=")
        name = tables.axis_name(axis.strip(), schema.names())
        if not equals or name not in schema:
            raise InputError(f"{choice}: expected AXIS=VALUE; axes: {', '.join(schema)}.")
        wanted = [value.strip() for value in written.split(",") if value.strip()]
        if schema[name].is_numeric():
            try:
                numbers = [float(value) for value in wanted]
            except ValueError as error:
                raise InputError(f"{choice}: {error}, expected a number.") from None
            matching = rows.filter(pl.col(name).cast(pl.Float64).is_in(numbers))
        else:
            words = pl.col(name).cast(pl.String).fill_null("none").str.to_lowercase()
            matching = rows.filter(words.is_in([value.lower() for value in wanted]))
        if not matching.limit(1).collect().height:
            values = list_words([*map(setting_text, _distinct(rows, name))])
            raise InputError(f"{choice} matches no rows; values of {name}: {values}.")
        rows = matching
    return rows


@checked
def with_metric(rows: pl.LazyFrame, metric: str) -> tuple[pl.DataFrame, int]:
    """The rows of one metric, and the number of runs without it."""
    chosen = rows.filter(pl.col("metric") == metric).collect()
    if not chosen.height:
        known = list_words(_distinct(rows, "metric"), 12)
        raise InputError(f"the sweep has no metric {metric}; available: {known}.")
    return chosen, len(_distinct(rows, RUN)) - chosen[RUN].n_unique()


def _distinct(rows: pl.LazyFrame, name: str) -> list[Any]:
    """The distinct values of a column, in order of appearance."""
    return rows.select(pl.col(name).unique(maintain_order=True)).collect()[name].to_list()


def axis_column(values: Sequence[AxisValue]) -> pl.Series:
    """The values of an axis as a column: numbers if all are, else text.

    >>> axis_column([1, 2.5]).to_list(), axis_column(["layer", False, None]).to_list()
    ([1.0, 2.5], ['layer', 'false', None])
    """
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pl.Series(values, dtype=pl.Boolean)
    if kinds == {int} and all(abs(value or 0) < 2**63 for value in values):  # type: ignore[arg-type]
        return pl.Series(values, dtype=pl.Int64)
    if kinds and kinds <= {int, float}:
        return pl.Series([None if v is None else float(v) for v in values], dtype=pl.Float64)
    texts = [v if v is None or isinstance(v, str) else json.dumps(v) for v in values]
    return pl.Series(texts, dtype=pl.String)
