"""``write``: save a result as files; ``to_json``: convert it to JSON."""

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
    """Write a result's table and page, and return their paths.

    >>> from rankscope.experiments import run
    >>> write(run("D8"), "out", charts=True)
    {'table': 'out/d8-....parquet', 'chart': 'out/d8-....png', 'page': 'out/d8-....html'}

    The table is a Parquet file that contains the full result (``rankscope.results.read``), and the
    page a self-contained HTML file; with ``charts``, each chart is also saved as PNG. ``on_step``
    is called with the fraction of the work that is done.
    """
    files = names(result, folder, charts=charts)
    results.write(result, files["table"])
    document = page(result)
    # Reuse the charts of the page: drawing is slow.
    pictures = [path for what, path in files.items() if what.startswith("chart")]
    for number, (path, chart) in enumerate(zip(pictures, document.charts, strict=False), start=1):
        on_step(number / (len(pictures) + 2))
        save(labelled(chart.spec, chart.title, result.title), path)
    on_step(1 - 1 / (len(pictures) + 2))
    write_html(document, files["page"])
    on_step(1.0)
    return files


def names(result: Result, folder: str | Path, *, charts: bool = False) -> dict[str, str]:
    """The files that ``write`` makes of a result, by kind; the page is last."""
    stem = Path(folder) / result.stem
    count = len(result.all_drawings) if charts else 0
    counted = ["", *(f"-{number}" for number in range(2, count + 1))][:count]
    pictures = {f"chart{c}": f"{stem}{c}.png" for c in counted}
    return {"table": f"{stem}.parquet", **pictures, "page": f"{stem}.html"}


@checked
def to_json(
    result: Result, files: Mapping[str, str] | None = None, *, with_table: bool = False
) -> dict[str, Any]:
    """Convert a result to a dictionary for ``json.dumps``.

    >>> from rankscope.experiments import run
    >>> from rankscope.show.report import to_json
    >>> fields = to_json(run("D8"))
    >>> fields["id"], fields["verdict"]
    ('D8', 'holds')

    ``files`` are the paths of its files. The full table is large, so it is None unless
    ``with_table``; the summary has the metrics that the page shows, by layer, length or setting.
    NaN becomes None; infinities become "inf" and "-inf", which ``float`` reads (minus infinity
    means that all tokens are exactly equal).
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
    """The summary without rows by token or singular value, and without empty columns."""
    rows = result.summary
    if result.parts:
        rows = rows.filter(pl.col("metric").is_in(result.shown))
    fine = [name for name in _FINE if name in rows.columns]
    rows = rows.filter([pl.lit(True), *(pl.col(name).is_null() for name in fine)]).drop(fine)
    return rows.select(column for column in rows if column.null_count() < rows.height)


def _listed(listing: Listing) -> dict[str, Any]:
    """A listing as JSON: each row by column name."""
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
