"""``write``: a result as files."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import polars as pl

from rankscope import results
from rankscope.arguments import checked
from rankscope.results import Listing, Result
from rankscope.show.figures import labelled, save
from rankscope.show.report._html import write_html
from rankscope.show.report._page import page

_FINE: Final = ("index", "token", "other_token")


@checked
def write(
    result: Result,
    folder: str | Path,
    *,
    charts: bool = False,
    on_step: Callable[[float], None] = lambda _: None,
) -> dict[str, str]:
    """Write a result's table and page; what each file is, and where.

    >>> from rankscope.experiments import run
    >>> write(run("D8"), "out", charts=True)
    {'table': 'out/d8-....parquet', 'chart': 'out/d8-....png', 'page': 'out/d8-....html'}

    The table is Parquet with the whole result inside (``rankscope.results``), and the page one HTML
    file that needs nothing else; with ``charts``, each of its charts is a PNG as well. ``on_step``
    is told the share of the work that is done.
    """
    files = names(result, folder, charts=charts)
    results.write(result, files["table"])
    document = page(result)
    # The very charts of the page: to draw one takes long.
    pictures = [path for what, path in files.items() if what.startswith("chart")]
    for number, (path, chart) in enumerate(zip(pictures, document.charts, strict=False), start=1):
        on_step(number / (len(pictures) + 2))
        save(labelled(chart.spec, chart.title, result.title), path)
    on_step(1 - 1 / (len(pictures) + 2))
    write_html(document, files["page"])
    on_step(1.0)
    return files


def names(result: Result, folder: str | Path, *, charts: bool = False) -> dict[str, str]:
    """What each file of a result is, and where ``write`` puts it; the page comes last."""
    stem = Path(folder) / result.stem
    count = len(result.all_drawings) if charts else 0
    counted = ["", *(f"-{number}" for number in range(2, count + 1))][:count]
    pictures = {f"chart{c}": f"{stem}{c}.png" for c in counted}
    return {"table": f"{stem}.parquet", **pictures, "page": f"{stem}.html"}


@checked
def to_json(
    result: Result, files: Mapping[str, str] | None = None, *, with_table: bool = False
) -> dict[str, Any]:
    """A result as a dictionary for ``json.dumps``, of numbers, words, lists and dictionaries.

    ``files`` are those that were written. The whole table is large, so its key holds None unless
    it is asked for; the summary is that of the metrics told in figures, by layer, length or
    setting. NaN becomes None, and infinities the words "inf" and "-inf": they are findings
    (minus infinity: all tokens exactly equal), and ``float`` reads them back.
    """
    fields: dict[str, Any] = {
        "id": result.id,
        "title": result.title,
        "question": result.question,
        "source": result.source or None,
        "verdict": result.verdict,
        "judgement": result.judgement and asdict(result.judgement),
        "beyond": result.beyond and asdict(result.beyond),
        "headline": result.headline and asdict(result.headline),
        "warnings": result.warnings,
        "sentences": result.sentences,
        "answers": result.answers,
        "findings": [asdict(finding) for finding in result.findings],
        "key_figures": result.key_figures,
        "listings": [_listed(listing) for listing in result.listings],
        "parts": [
            {
                "title": part.title,
                "sentences": part.sentences,
                "listings": [_listed(listing) for listing in part.listings],
            }
            for part in result.parts
        ],
        "summary": _summary(result).to_dicts(),
        "table": result.table.to_dicts() if with_table else None,
        "provenance": result.provenance,
        "files": files or {},
    }
    return {key: _finite(value) for key, value in fields.items()}


def _summary(result: Result) -> pl.DataFrame:
    """The rows that a reader could take in: none by token or singular value, no empty column."""
    rows = result.summary
    if result.parts:
        rows = rows.filter(pl.col("metric").is_in(result.shown))
    fine = [name for name in _FINE if name in rows.columns]
    rows = rows.filter([pl.lit(True), *(pl.col(name).is_null() for name in fine)]).drop(fine)
    return rows.select(column for column in rows if column.null_count() < rows.height)


def _listed(listing: Listing) -> dict[str, Any]:
    """Its rows under the names of its columns."""
    rows = [dict(zip(listing.columns, row, strict=True)) for row in listing.rows]
    return {"title": listing.title, "rows": rows, "note": listing.note}


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
