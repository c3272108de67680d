"""``to_json``: a result in what JSON has, always under the same keys."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rankscope.arguments import checked
from rankscope.results import Judgement, Listing, Result


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
        "judgement": _judged(result.judgement),
        "beyond": _judged(result.beyond),
        "headline": None if result.headline is None else asdict(result.headline),
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


def _judged(judgement: Judgement | None) -> dict[str, str] | None:
    return None if judgement is None else asdict(judgement)


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
