"""Run the study of early warnings and write its tables into docs/early-warning.md."""

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from rankscope.experiments.studies import early_warning
from rankscope.experiments.studies._training_faults import FAULTS, KINDS
from rankscope.results import Listing
from rankscope.version import __version__

TARGET = Path(__file__).parents[1] / "docs" / "early-warning.md"
BEGIN, END = "<!-- tables -->\n", "<!-- end -->\n"
LONG, LONG_SEEDS, PROCESSES = 1000, 3, 2


def main(seeds: int) -> None:
    """Seeds 0, 1, …; rules and faults were developed on seeds from 1,000 on."""
    config = early_warning.Config(seeds=seeds)
    long = replace(config, steps=LONG)
    work = [(long, kind, "", seed) for kind in KINDS for seed in range(LONG_SEEDS)]
    first, count = len(work), len(work) + seeds * (len(KINDS) + len(FAULTS))
    work += [(config, *case) for case in early_warning.cases(config)]
    runs = []
    with ProcessPoolExecutor(PROCESSES, initializer=_prepare) as pool:
        for run in pool.map(early_warning.watch, *zip(*work, strict=True)):
            runs.append(run)
            print(f"{len(runs)} of {count} runs", end="\r", flush=True)
    answer = early_warning.judge(config, early_warning.tabulate(runs[first:]))
    longer = runs[:first]
    day = datetime.now(UTC).date()
    about = (
        f"Version {__version__}, {day}, seeds 0 to {seeds - 1}, {config.steps} steps with a record "
        f"every {config.every}; faults that grow begin at step {config.begin}."
    )
    faults, rules, healthy = answer.listings[:3]
    long_title = f"Healthy runs of {LONG:,} steps, seeds 0 to {LONG_SEEDS - 1}"
    longest = replace(early_warning.list_healthy(longer), title=long_title)
    parts = [about, *answer.sentences, *map(_table, (faults, rules, healthy, longest))]
    before, _, rest = TARGET.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    text = f"{before}{BEGIN}\n{chr(10).join(f'{part}{chr(10)}' for part in parts)}\n{END}{after}"
    TARGET.write_text(text, encoding="utf-8")


def _prepare() -> None:
    torch.set_num_threads(1)


def _table(listing: Listing) -> str:
    head = [" | ".join(listing.columns), "|".join("---" for _ in listing.columns)]
    rows = [" | ".join(str(entry).replace("-", "−") if _is_negative(entry) else str(entry)
                       for entry in row) for row in listing.rows]  # fmt: skip
    lines = [f"| {row} |" for row in (*head, *rows)]
    note = f"\n\n{listing.note}" if listing.note else ""
    return f"**{listing.title}**\n\n" + "\n".join(lines) + note


def _is_negative(entry: object) -> bool:
    """Whether an entry is a number, or a range of numbers, with a minus sign."""
    return str(entry).startswith("-") or "(-" in str(entry)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
