"""Write docs/reproduced.md: how every claim ended in a folder of ``rankscope reproduce --all``."""

import sys
from pathlib import Path

from rankscope import journal
from rankscope.experiments.catalogue import entries
from rankscope.numerals import short
from rankscope.version import __version__

TARGET = Path(__file__).parents[1] / "docs" / "reproduced.md"
_OPENING = """# Both papers, claim by claim

What `rankscope reproduce --all` found (version {version}, {scales} scale, seed {seeds}), written by
`make reproduced`. Each verdict is computed from figures measured in the run: first on the domain
that a claim was stated for, then on what was tried beyond it. `rankscope reproduce ID` shows the
figures behind it, and its page the charts.

| id | claim | as stated | beyond it | key figure | seconds |
|---|---|---|---|---|---|
"""


def main() -> None:
    """Read the runs of the folder that was named, and write the table."""
    runs = journal.runs(Path(sys.argv[1]))
    last = {id_: journal.last(runs, id_) for id_ in entries("claim")}
    done = {id_: run for id_, run in last.items() if run is not None and not run.failure}
    missing = [id_ for id_ in last if id_ not in done]
    if missing:
        sys.exit(f"no result of {', '.join(missing)} in {sys.argv[1]}; run them first.")
    scales = ", ".join(sorted({run.scale for run in done.values()}))
    seeds = ", ".join(sorted({str(run.seed) for run in done.values()}))
    rows = [_row(id_, run) for id_, run in done.items()]
    opening = _OPENING.format(version=__version__, scales=scales, seeds=seeds)
    TARGET.write_text(opening + "\n".join(rows) + "\n", encoding="utf-8")


def _row(id_: str, run: journal.Run) -> str:
    claim = entries("claim")[id_]
    name, value = run.key_figure or ("", float("nan"))
    stated, _, beyond = run.verdict.partition("; beyond: ")
    cells = [
        id_,
        f"{claim.title} ({claim.source})",
        f"**{stated}** ({claim.domain})",
        f"{beyond} ({run.beyond['domain']})" if run.beyond else "",
        f"{name}: {short(value)}",
        f"{run.seconds:.0f}",
    ]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    main()
