"""Write into docs/reproduced.md how every claim ended in a folder of ``reproduce --all``."""

import re
import sys
from pathlib import Path

from rankscope.experiments.catalogue import entries
from rankscope.numerals import short
from rankscope.run import ClaimRun, claim_runs
from rankscope.version import __version__

TARGET = Path(__file__).parents[1] / "docs" / "reproduced.md"
_TABLE = re.compile(r"(<!-- verdicts -->\n).*?(<!-- end -->)", re.DOTALL)
_HEAD = """| id | claim | as stated | beyond it | key figure | seconds |
|---|---|---|---|---|---|
"""


def main() -> None:
    """Read the runs of the folder that was named, and write the table."""
    last = {run.id: run for run in claim_runs(sys.argv[1])}
    done = {id_: last[id_] for id_ in entries("claim") if id_ in last and not last[id_].failure}
    missing = [id_ for id_ in entries("claim") if id_ not in done]
    if missing:
        sys.exit(f"no result of {', '.join(missing)} in {sys.argv[1]}; run them first.")
    scales = ", ".join(sorted({run.scale for run in done.values()}))
    seeds = ", ".join(sorted({str(run.seed) for run in done.values()}))
    rows = [_row(id_, run) for id_, run in done.items()]
    made = f"Version {__version__}, {scales} scale, seed {seeds}:\n\n{_HEAD}" + "\n".join(rows)
    before = TARGET.read_text(encoding="utf-8")
    after = _TABLE.sub(lambda found: f"{found[1]}{made}\n{found[2]}", before)
    TARGET.write_text(after, encoding="utf-8")


def _row(id_: str, run: ClaimRun) -> str:
    claim = entries("claim")[id_]
    name, value = run.key_figure or ("", float("nan"))
    stated, _, beyond = run.verdict.partition("; beyond: ")
    cells = [
        id_,
        f"{claim.title} ({claim.source})",
        f"**{stated}** ({claim.domain})",
        f"{beyond} ({run.beyond['domain']})" if run.beyond else "",
        f"{name}: {short(value)}",
        f"{run.seconds or 0.0:.0f}",
    ]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    main()
