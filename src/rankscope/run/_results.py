"""The result of one run as one file, and all of them as one table.

Equal runs make equal files: nothing of this machine is in them. The settings along a grid's axes
are not, either, because the same run may stand in another grid with other axes; ``table`` joins
them. A file counts if it is what was written, by its digest in the database.
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
from rankscope.run._engine import Run, Setting, in_words
from rankscope.run._store import ASIDE, RESULTS, Ended, Store, digest_of, is_key

RUN: Final = "run"
_SCHEMA: Final[dict[str, type[pl.DataType]]] = {
    RUN: pl.String,
    **{name + tables.IN_RUN * (name == RUN): kind for name, kind in tables.COLUMNS.items()},
}
"""Every column that a result can have."""
_NOTE: Final = "rankscope.sweep"
_SMALL: Final = 2**16  # bytes up to which a result is held in memory while a table is made of many
# A panic of polars, which some damaged files and some columns cause, is no Exception.
_FAILING: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException, TypeError, ValueError)


def place(folder: Path, key: str) -> Path:
    """Where the result of a run is."""
    return folder / RESULTS / f"{key}.parquet"


def to_bytes(run: Run, table: object) -> bytes:
    """The file of a run's result; an error if that table cannot be one."""
    if not isinstance(table, pl.DataFrame):
        raise KindError(f"the run gave a {type(table).__name__}, expected a polars table.")
    unknown = sorted(set(table.columns) - set(tables.COLUMNS))
    if unknown or not {"metric", "value"} <= set(table.columns):
        raise InputError(
            f"the run gave a table of {', '.join(table.columns) or 'no columns'}; expected metric, "
            f"value and any of {', '.join(tables.COLUMNS)}."
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
    """Write the result of a run, whole."""
    write_file(place(folder, key), content, follow_link=False)


def described(key: str, content: bytes) -> dict[str, Any]:
    """What is noted of a result: where it is, and enough to read many of them at once."""
    columns = list(pl.read_parquet_schema(io.BytesIO(content)))
    file = f"{RESULTS}/{key}.parquet"
    return {"file": file, "digest": digest_of(content), "details": {"columns": columns}}


def tidy(store: Store) -> tuple[set[str], dict[str, str]]:
    """Set damaged results aside, take up those not noted yet, and forget those that are gone.

    For the holder of the folder alone. Gives the keys of whole results, and the files that were
    set aside, with why.
    """
    noted, done, aside = store.results(), set(), {}
    taken_up: list[Ended] = []
    results = store.folder / RESULTS
    for path in sorted(results.iterdir()) if results.is_dir() else ():
        if is_unfinished(path):  # an earlier sweep was killed while it wrote
            path.unlink()
        elif path.suffix == ".parquet" and is_key(path.stem):
            wrong, run = _looked_at(path, noted.get(path.stem))
            if wrong:
                aside[_set_aside(store.folder, path)] = wrong
            else:
                done.add(path.stem)
                taken_up += [] if run is None else [run]
    store.note(*taken_up)
    store.forget(*(noted.keys() - done))
    return done, aside


def _looked_at(path: Path, written: str | None) -> tuple[str, Ended | None]:
    """What is wrong with a result, or nothing; and what to note, if ``written`` says nothing yet.

    The driver may have ended between writing the file and noting its digest; then it is read.
    """
    key = path.stem
    try:
        content = _content(path)
        if written is not None:
            return ("" if digest_of(content) == written else "it is not what was written"), None
        table, metadata = tables.from_parquet(path)
        notes = json.loads(metadata.get(_NOTE, "null"))
        if not isinstance(notes, dict) or set(notes) != {key}:
            return f"it is of {', '.join(notes or ()) or 'no run'}", None
    except OSError as error:
        return error.strerror or str(error), None
    except (*_FAILING, RecursionError) as error:
        return in_words(error), None
    ours = all(_SCHEMA.get(name) == kind for name, kind in table.schema.items())
    ours = ours and {RUN, "metric", "value"} <= set(table.columns)
    if not ours or not table[RUN].eq(key).all():
        return "its table is not that of a run", None
    settings = {"axes": {}, "fields": notes[key].get("fields", {})}
    ended, experiment = path.stat().st_mtime, str(notes[key].get("experiment"))
    return "", Ended(key, experiment, settings, ended, **described(key, content))


def _content(path: Path) -> bytes:
    """The bytes of a result; what a link leads to is none, and a pipe would be waited for."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise OSError("it is a symbolic link, or no regular file")
    return path.read_bytes()


def _set_aside(folder: Path, path: Path) -> str:
    """Move a file to where it does not count; its new name."""
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
    """Every result of the grid that was asked for last: ``run``, the axes, then the long table.

    Rows come in the grid's order. Where an axis has the name of a column of the long table, that
    column is called ``<name>_in_run``. Results of runs that the grid no longer has are left out.
    A sweep may go on meanwhile: what is done at the time of this call is in the table. A file that
    is not what was written is an error.
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


def _scan(folder: Path, runs: Sequence[Ended]) -> pl.LazyFrame:
    """Results one below the other, with the columns any of them has; null where one has not."""
    small: list[bytes] = []
    large: list[Path] = []
    for run in runs:
        path = place(folder, run.key)
        try:
            content = _content(path)
            if digest_of(content) != run.digest:
                raise OSError("it is not what was written")
        except OSError as error:
            raise InputError(
                f"{path} is damaged ({error.strerror or error}); start the sweep again, which sets "
                "it aside and computes it anew."
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
    """The rows of a sweep's table with some values of its axes, each as ``AXIS=VALUE[,VALUE]``."""
    schema = rows.collect_schema()
    for choice in only:
        axis, equals, written = choice.partition("=")
        name = tables.axis_name(axis.strip(), schema.names())
        if not equals or name not in schema:
            raise InputError(f"{choice}: write AXIS=VALUE; there is {', '.join(schema)}.")
        wanted = [value.strip() for value in written.split(",") if value.strip()]
        if schema[name].is_numeric():
            try:
                numbers = [float(value) for value in wanted]
            except ValueError as error:
                raise InputError(f"{choice}: {error}, expected a number.") from None
            kept = rows.filter(pl.col(name).cast(pl.Float64).is_in(numbers))
        else:
            words = pl.col(name).cast(pl.String).fill_null("none").str.to_lowercase()
            kept = rows.filter(words.is_in([value.lower() for value in wanted]))
        if not kept.limit(1).collect().height:
            values = list_words([*map(setting_text, _distinct(rows, name))])
            raise InputError(f"{choice} keeps nothing; {name} is {values}.")
        rows = kept
    return rows


@checked
def with_metric(rows: pl.LazyFrame, metric: str) -> tuple[pl.DataFrame, int]:
    """The rows of one metric, and how many runs have none of it, which no chart shows."""
    chosen = rows.filter(pl.col("metric") == metric).collect()
    if not chosen.height:
        known = list_words(_distinct(rows, "metric"), 12)
        raise InputError(f"the sweep has no {metric}; it has {known}.")
    return chosen, len(_distinct(rows, RUN)) - chosen[RUN].n_unique()


def _distinct(rows: pl.LazyFrame, name: str) -> list[Any]:
    """The values of a column, each once, in the order they come in."""
    return rows.select(pl.col(name).unique(maintain_order=True)).collect()[name].to_list()


def axis_column(values: Sequence[Setting]) -> pl.Series:
    """Settings along an axis as a column: as numbers if all are, else as text.

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
