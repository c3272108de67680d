"""Write into docs/reproduced.md how every claim ended in folders of ``reproduce``."""

import re
import sys
from pathlib import Path

from rankscope.experiments.catalogue import entries
from rankscope.numerals import span
from rankscope.run import ClaimSeries, claim_runs, over_seeds
from rankscope.version import __version__

TARGET = Path(__file__).parents[1] / "docs" / "reproduced.md"
_TABLE = re.compile(r"(<!-- verdicts -->\n).*?(<!-- end -->)", re.DOTALL)
_HEAD = """| id | claim | as stated | beyond it | seeds | key figure | seconds |
|---|---|---|---|---|---|---|
"""


def main() -> None:
    """Read the runs of the folders that were named, and write the table."""
    runs = [run for folder in sys.argv[1:] for run in claim_runs(folder) if not run.failure]
    by_stem = {run.stem: run for run in runs}  # of a run that is there twice, the last
    last = {series.runs[0].id: series for series in over_seeds(list(by_stem.values()))}
    done = {id_: last[id_] for id_ in entries("claim") if id_ in last}
    missing = [id_ for id_ in entries("claim") if id_ not in done]
    if missing:
        sys.exit(f"no result of {', '.join(missing)} in {', '.join(sys.argv[1:])}; run them first.")
    scales = ", ".join(sorted({series.runs[0].scale for series in done.values()}))
    rows = [_row(id_, series) for id_, series in done.items()]
    table = f"Version {__version__}, {scales} scale:\n\n{_HEAD}" + "\n".join(rows)
    before = TARGET.read_text(encoding="utf-8")
    after = _TABLE.sub(lambda match: f"{match[1]}{table}\n{match[2]}", before)
    TARGET.write_text(after, encoding="utf-8")


def _row(id_: str, series: ClaimSeries) -> str:
    claim, stated, beyond = entries("claim")[id_], series.judgement, series.beyond
    figures = [run.key_figure for run in series.runs if run.key_figure is not None]
    seconds = [run.seconds or 0.0 for run in series.runs]
    cells = [
        id_,
        f"{claim.title} ({claim.source})",
        f"**{stated}** ({claim.domain})",
        f"{beyond} ({beyond.domain})" if beyond else "",
        series.seeds,
        f"{figures[0][0]}: {span(value for _, value in figures)}" if figures else "",
        f"{min(seconds):.0f}",
    ]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    main()
