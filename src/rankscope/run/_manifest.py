"""What was asked for: the grid as it was given, and each of its runs with its settings."""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from rankscope.errors import InputError
from rankscope.process.files import whole_file
from rankscope.run import _results
from rankscope.run._folder import FORMAT, Folder
from rankscope.run._run import Run, Setting

_AXIS: Final = "axes."
"""What the columns of the axes begin with in the file, where ``experiment`` may be both."""


def write(folder: Folder, runs: Sequence[Run], grid: Mapping[str, Any]) -> None:
    """Write down what is asked for, in the place of what was asked for before.

    A run that stands at several points of the grid has a row for each, so that a table has it with
    the settings of all of them.
    """
    names = dict.fromkeys(name for run in runs for name in run.axes)
    if _results.RUN in names:
        raise InputError("an axis cannot be called 'run', which is the column of the runs' keys.")
    columns = {
        "run": pl.Series([run.key for run in runs], dtype=pl.String),
        "experiment": pl.Series([run.experiment for run in runs], dtype=pl.String),
        **{_AXIS + name: column([run.axes.get(name) for run in runs]) for name in names},
        "fields": pl.Series([json.dumps(dict(run.fields)) for run in runs], dtype=pl.String),
    }
    asked = {"rankscope_sweep": FORMAT, "grid": dict(grid)}
    with whole_file(folder.grid) as unfinished:
        unfinished.write_text(json.dumps(asked, indent=1, default=str), encoding="utf-8")
    points = ["run", *(_AXIS + name for name in names)]
    content = io.BytesIO()  # of a full disk, polars would raise an error of its own
    pl.DataFrame(columns).unique(points, keep="first", maintain_order=True).write_parquet(content)
    with whole_file(folder.runs) as unfinished:
        unfinished.write_bytes(content.getvalue())


def settings(folder: Folder) -> pl.LazyFrame:
    """The points that were asked for last: the run's key, then the settings along the axes."""
    if not folder.runs.is_file():
        raise InputError(f"{folder.path} has no runs yet; start its sweep, or start it again.")
    try:
        names = pl.read_parquet_schema(folder.runs)
        axes = [name for name in names if name.startswith(_AXIS)]
        named = (pl.col(name).alias(name.removeprefix(_AXIS)) for name in axes)
        found = pl.scan_parquet(folder.runs, glob=False).select("run", *named)
        return found.collect().lazy()  # whether it is whole, reading alone tells
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise InputError(
            f"{folder.runs} is damaged ({error}); start the sweep again, which writes it anew."
        ) from error


def keys(folder: Folder) -> list[str]:
    """The runs that were asked for last, in the grid's order."""
    return settings(folder).select("run").unique(maintain_order=True).collect()["run"].to_list()


def column(values: Sequence[Setting]) -> pl.Series:
    """Settings along an axis as a column: as numbers if all are, else as text.

    >>> column([1, 2.5]).to_list(), column(["layer", False, None]).to_list()
    ([1.0, 2.5], ['layer', 'false', None])
    """
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pl.Series(values, dtype=pl.Boolean)
    if kinds == {int} and all(abs(value or 0) < 2**63 for value in values):  # type: ignore[arg-type]
        return pl.Series(values, dtype=pl.Int64)
    if kinds and kinds <= {int, float}:
        return pl.Series(
            [None if each is None else float(each) for each in values], dtype=pl.Float64
        )
    return pl.Series([_text(value) for value in values], dtype=pl.String)


def _text(value: Setting) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)
