"""A result as one Parquet file, and back: its table, and in the metadata everything else.

Torch-free. What is read back can be shown, drawn and judged without computing anything anew.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

from rankscope import tables
from rankscope.arguments import checked
from rankscope.errors import InputError
from rankscope.metric_catalogue import Metric
from rankscope.results import Drawing, Finding, Headline, Judgement, Listing, Part, Result

__all__ = ["read", "write"]

_KEY: Final = "rankscope.result"
_ELSEWHERE: Final = ("table", "provenance")
"""Fields that a table's file holds anyway."""


@checked
def write(result: Result, path: str | Path) -> Path:
    """Write a whole result; equal results make equal files."""
    kept = {
        each.name: getattr(result, each.name)
        for each in fields(result)
        if each.name not in _ELSEWHERE
    }
    written = json.dumps(kept, default=_plain)
    return tables.write(result.table, path, result.provenance, {_KEY: written})


@checked
def read(path: str | Path) -> Result:
    """A result as written by ``write``.

    >>> from rankscope.experiments import run
    >>> read(write(run("D8"), "d8.parquet")).verdict
    'depends'
    """
    table, provenance = tables.read(path)
    try:
        kept = json.loads(tables.metadata(path)[_KEY])
        return Result(table=table, provenance=provenance, **_typed(kept))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} holds a table, but no result that can be read.") from error


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else asdict(value)


def _typed(kept: dict[str, Any]) -> dict[str, Any]:
    """Fields of a result from what JSON has."""
    for name in ("judgement", "beyond"):
        kept[name] = None if kept[name] is None else Judgement(**kept[name])
    kept["headline"] = None if kept["headline"] is None else Headline(**kept["headline"])
    kept["findings"] = tuple(Finding(**each) for each in kept["findings"])
    kept["parts"] = tuple(Part(**_contents(each)) for each in kept["parts"])
    kept["metrics"] = tuple(_metric(each) for each in kept["metrics"])
    for name in ("shown", "warnings"):
        kept[name] = tuple(kept[name])
    return _contents(kept)


def _contents(kept: dict[str, Any]) -> dict[str, Any]:
    """What a result and its parts have in common."""
    kept["sentences"] = tuple(kept["sentences"])
    kept["drawings"] = tuple(_drawing(each) for each in kept["drawings"])
    kept["listings"] = tuple(_listing(each) for each in kept["listings"])
    return kept


def _listing(kept: dict[str, Any]) -> Listing:
    rows = tuple(tuple(row) for row in kept.pop("rows"))
    return Listing(columns=tuple(kept.pop("columns")), rows=rows, **kept)


def _drawing(kept: dict[str, Any]) -> Drawing:
    kept["only"] = {column: tuple(labels) for column, labels in kept["only"].items()}
    return Drawing(**kept)


def _metric(kept: dict[str, Any]) -> Metric:
    marks = tuple((value, mark) for value, mark in kept.pop("marks"))
    return Metric(includes=tuple(kept.pop("includes")), marks=marks, **kept)
