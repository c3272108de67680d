"""All results of a sweep as one table."""

from pathlib import Path
from typing import Final

import polars as pl

from rankscope import tables
from rankscope.arguments import checked
from rankscope.run import _manifest, _packs, _results
from rankscope.run._folder import Folder, keys_in, known

_TRIES: Final = 5


@checked
def table(folder: str | Path) -> pl.LazyFrame:
    """Every result of the grid that was asked for last: ``run``, the axes, then the long table.

    Rows come in the grid's order. Where an axis has the name of a column of the long table, that
    column is called ``<name>_in_run``. Results of runs that the grid no longer has are left out.
    A sweep may go on meanwhile: what is done at the time of this call is in the table.
    """
    place = known(folder)
    asked = _manifest.settings(place)
    axes = asked.collect_schema().names()[1:]
    results = _results_in(place)
    columns = results.collect_schema().names()
    own = {name: name + tables.IN_RUN for name in columns if name in axes}
    return asked.join(results.rename(own), on="run", how="inner", maintain_order="left_right")


def _results_in(folder: Folder) -> pl.LazyFrame:
    """Results single and packed, each run once."""
    for attempt in range(_TRIES):
        try:
            return _listed(folder)
        except FileNotFoundError:  # a sweep that goes on has packed some meanwhile
            if attempt == _TRIES - 1:
                raise
    raise AssertionError("the last try returns or raises")


def _listed(folder: Folder) -> pl.LazyFrame:
    single = keys_in(folder.results, ".parquet")
    frames, seen = [], set[str]()
    for pack in _packs.paths_of_packs(folder):
        held = set(_results.notes(pack))
        frame = _packs.scan([pack])
        if twice := held & seen:
            frame = frame.filter(~pl.col("run").is_in(sorted(twice)))
        frames.append(frame)
        seen |= held
    single = [key for key in single if key not in seen]
    small = [folder.result(key) for key in single if _packs.is_small(folder, key)]
    large = [folder.result(key) for key in single if not _packs.is_small(folder, key)]
    if small:  # read at once, because a sweep that goes on may pack them away
        with _packs.told_if_damaged(folder.results):
            frames.append(_packs.scan(small).collect().lazy())
    if large:
        frames.append(_packs.scan(large))
    empty = pl.LazyFrame(
        schema={name: _results.SCHEMA[name] for name in ("run", "metric", "value")}
    )
    found = pl.concat(frames, how="diagonal") if frames else empty
    names = found.collect_schema().names()
    return found.select([name for name in _results.SCHEMA if name in names])
