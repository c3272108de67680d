"""Write what the catalogues know into docs and CHANGELOG.md, between their markers.

A marker is ``<!-- list: NAME -->`` … ``<!-- end -->``. With ``--check`` nothing is written, and a
list that is out of step is an error.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import fill

from rankscope.experiments.catalogue import Entry, entries
from rankscope.metric_catalogue import METRICS
from rankscope.monitor import MONITORED

ROOT = Path(__file__).parents[1]
FILES = ("docs/guide.md", "docs/monitor.md", "CHANGELOG.md")
_BLOCK = re.compile(r"(?P<indent>[ ]*)<!-- list: (?P<name>\w+) -->\n.*?<!-- end -->", re.DOTALL)


def _table(listed: dict[str, Entry]) -> str:
    rows = [f"| {claim.id} | {claim.title} | {claim.source} |" for claim in listed.values()]
    return "\n".join(["| id | claim | from |", "|---|---|---|", *rows])


def _studies() -> str:
    rows = [f"| `{study.id}` | {study.title} |" for study in entries("study").values()]
    return "\n".join(["| name | what it shows |", "|---|---|", *rows])


def _metrics() -> str:
    traced = [metric for metric in METRICS.values() if metric.compute]
    rows = [f"| `{metric.name}` | {metric.title} | {metric.meaning} |" for metric in traced]
    return "\n".join(["| metric | name | how to read it |", "|---|---|---|", *rows])


def _monitored() -> str:
    rows = [
        f"| {f'**`{name}`**' if entry.logged else f'`{name}`'} | {entry.metric.definition} "
        f"| {entry.metric.meaning} |"
        for name, entry in MONITORED.items()
    ]
    return "\n".join(["| name | what it is | how to read it |", "|---|---|---|", *rows])


def _ids() -> str:
    return fill(f"claims {', '.join(entries('claim'))}; studies {', '.join(entries('study'))}", 96)


LISTS: dict[str, Callable[[], str]] = {
    "claims": lambda: _table(entries("claim")),
    "studies": _studies,
    "metrics": _metrics,
    "monitored": _monitored,
    "ids": _ids,
}


def written(text: str) -> str:
    """A text with every list in it made anew."""

    def block(match: re.Match[str]) -> str:
        name, indent = match["name"], match["indent"]
        listed = "\n".join(indent + line for line in LISTS[name]().splitlines())
        return f"{indent}<!-- list: {name} -->\n{listed}\n{indent}<!-- end -->"

    return _BLOCK.sub(block, text)


def main() -> None:
    """Write the lists, or with ``--check`` say which file is out of step."""
    for name in FILES:
        path = ROOT / name
        before = path.read_text(encoding="utf-8")
        after = written(before)
        if before != after and "--check" in sys.argv:
            sys.exit(f"{name} is out of step with the catalogue; run 'make lists'.")
        path.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
