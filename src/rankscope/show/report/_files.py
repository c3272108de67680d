"""``write``: a result as files."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rankscope import results
from rankscope.arguments import checked
from rankscope.results import Listing, Result
from rankscope.show.figures import labelled, save
from rankscope.show.report._html import write_html
from rankscope.show.report._page import page


@checked
def write(
    result: Result, folder: str | Path, *, on_step: Callable[[float], None] = lambda _: None
) -> dict[str, str]:
    """Write a result's table, charts and page; what each file is, and where.

    >>> from rankscope.experiments import run
    >>> write(run("D8"), "out")
    {'table': 'out/d8-....parquet', 'chart': 'out/d8-....png', 'report': 'out/d8-....html'}

    The table is Parquet with the whole result inside (``rankscope.results``), each chart a PNG, and
    the page one HTML file that needs nothing else. ``on_step`` is told the share of the work that
    is done.
    """
    files = names(result, folder)
    results.write(result, files["table"])
    document = page(result)
    # The very charts of the page: to draw one takes long.
    charts = document.charts
    pictures = [path for what, path in files.items() if what.startswith("chart")]
    for number, (chart, path) in enumerate(zip(charts, pictures, strict=True), start=1):
        on_step(number / (len(charts) + 2))
        save(labelled(chart.spec, chart.title, result.title), path)
    on_step(1 - 1 / (len(charts) + 2))
    write_html(document, files["report"])
    on_step(1.0)
    return files


def names(result: Result, folder: str | Path) -> dict[str, str]:
    """What each file of a result is, and where ``write`` puts it."""
    stem = Path(folder) / result.stem
    counted = ["", *(f"-{number}" for number in range(2, len(result.all_drawings) + 1))]
    charts = {f"chart{c}": f"{stem}{c}.png" for c in counted[: len(result.all_drawings)]}
    return {"table": f"{stem}.parquet", **charts, "report": f"{stem}.html"}


@checked
def to_json(
    result: Result, files: Mapping[str, str] | None = None, *, with_table: bool = False
) -> dict[str, Any]:
    """A result as a dictionary for ``json.dumps``, of numbers, words, lists and dictionaries.

    ``files`` are those that were written. The whole table is large, so its key holds None unless
    it is asked for. NaN becomes None, and infinities the words "inf" and "-inf": they are findings
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
        "summary": result.summary.to_dicts(),
        "table": result.table.to_dicts() if with_table else None,
        "provenance": result.provenance,
        "files": files or {},
    }
    return {key: _finite(value) for key, value in fields.items()}


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
