"""What was looked for, one by one, as one table: on a page and in a terminal."""

from collections.abc import Sequence
from typing import Final

from rankscope.results import Fate, Finding
from rankscope.show.report._prose import inline
from rankscope.show.report._tables import head, html_table
from rankscope.show.report._top import badge

CAPTION: Final = "What was looked for, and whether it was found"
FATES: Final[dict[Fate, str]] = {
    "collapse": "found",
    "slow": "under way",
    "noted": "found",
    "holds": "not found",
    "unknown": "cannot be told",
}
"""Whether something was found, in words."""
_COUNT: Final = "samples"
_HEADS: Final = ("looked for", "found?", "in words", "where", _COUNT, "rule")
_KINDS: Final = {"in words": "words", "where": "where", _COUNT: "number", "rule": "words rule"}


def findings_table(findings: Sequence[Finding]) -> str:
    """A row for each; columns that would be empty throughout are left out."""
    cells = [_cells(each) for each in findings]
    kept = [place for place in range(len(_HEADS)) if any(row[place] for row in cells)]
    heads = [head(_HEADS[place], right=_HEADS[place] == _COUNT) for place in kept]
    rows = [
        "".join(_cell(_HEADS[place], row[place], first=place == 0) for place in kept)
        for row in cells
    ]
    return html_table(heads, rows, caption=CAPTION, kind="table findings")


def _cells(finding: Finding) -> tuple[str, ...]:
    """What stands in its row, as HTML."""
    return (
        inline(finding.kind),
        badge(FATES[finding.fate], finding.fate),
        inline(finding.sentence),
        inline(where(finding)),
        in_how_many(finding),
        inline(finding.rule),
    )


def _cell(column: str, shown: str, *, first: bool) -> str:
    if first:
        return f'<th scope="row">{shown}</th>'
    kind = _KINDS.get(column, "")
    return f'<td class="{kind}">{shown}</td>' if kind else f"<td>{shown}</td>"


def where(finding: Finding) -> str:
    """The layer and the part to blame, where something was found."""
    if finding.fate not in ("collapse", "slow", "noted"):
        return ""
    layer = "" if finding.layer is None else f"layer {finding.layer:,}"
    return ", ".join(filter(None, [layer, finding.part]))


def in_how_many(finding: Finding) -> str:
    """In how many of the samples it was found; nothing if they were not counted."""
    counted = finding.samples and finding.fate != "unknown"
    return f"{finding.found_in:,} of {finding.samples:,}" if counted else ""
