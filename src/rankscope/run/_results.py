"""The result of one run as one file: its table under the run's key, and nothing of this machine.

Equal runs make equal files. The settings along a grid's axes are not in it, because the same run
may stand in another grid with other axes; ``table`` joins them.
"""

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl

from rankscope import tables
from rankscope.errors import InputError, KindError
from rankscope.process.files import whole_file
from rankscope.run._engine import in_words
from rankscope.run._run import Run

RUN: Final = "run"
"""The column that says which run a row is of."""
SCHEMA: Final[dict[str, type[pl.DataType]]] = {
    RUN: pl.String,
    **{name + tables.IN_RUN * (name == RUN): kind for name, kind in tables.COLUMNS.items()},
}
"""Every column that a result can have."""
_NOTE: Final = "rankscope.sweep"
# A panic of polars, which some damaged files and some columns cause, is no Exception.
FAILING = (pl.exceptions.PolarsError, pl.exceptions.PanicException, TypeError, ValueError)


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
        columns = {name: table[name].cast(tables.COLUMNS[name]) for name in table.columns}
        own = {
            name + tables.IN_RUN * (name == RUN): columns[name]
            for name in tables.COLUMNS
            if name in columns
        }
        whole = pl.DataFrame(
            {RUN: pl.repeat(run.key, len(table), dtype=pl.String, eager=True), **own}
        )
        return parquet(whole, {run.key: note})
    except FAILING as error:
        raise InputError(f"the run's table cannot be written: {in_words(error)}") from error


def parquet(table: pl.DataFrame, notes: Mapping[str, Mapping[str, Any]]) -> bytes:
    """A table of results as a file, with a note on each run in its metadata."""
    content = io.BytesIO()
    table.write_parquet(content, metadata={_NOTE: json.dumps(notes, sort_keys=True)})
    return content.getvalue()


def write(path: Path, content: bytes) -> str:
    """Write a file as a whole; its digest."""
    with whole_file(path) as unfinished:
        unfinished.write_bytes(content)
    return digest(content)


def digest(content: bytes) -> str:
    """A name for a file's content."""
    return hashlib.sha256(content).hexdigest()[:32]


def notes(path: Path) -> dict[str, dict[str, Any]]:
    """What is noted on each run whose result a file holds, by key."""
    try:
        found = json.loads(tables.metadata(path)[_NOTE])
    except (KeyError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise InputError(f"{path} is no result of a sweep.")
    return found


def problem(path: Path, key: str, written: str | None) -> str:
    """What is wrong with a result's file, or nothing; ``written`` is its digest when it was made.

    A file without a digest, as an end of the driver between two writes may leave one, is read.
    """
    try:
        content = path.read_bytes()
        if written is not None:
            return "" if digest(content) == written else "it is not what was written"
        held = notes(path)
        if set(held) != {key}:
            return f"it is of {', '.join(held) or 'no run'}"
        table = pl.read_parquet(io.BytesIO(content))
    except (*FAILING, OSError) as error:
        return in_words(error)
    ours = all(SCHEMA.get(name) == kind for name, kind in table.schema.items())
    ours = ours and {RUN, "metric", "value"} <= set(table.columns)
    return "" if ours and table[RUN].eq(key).all() else "its table is not that of a run"
