"""Draw the figures of ``paper/`` with commands of rankscope: ``python tools/paper_figures.py``."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rankscope import figures, results

PAPER = Path(__file__).parents[1] / "paper"
FIGURES = {  # a command, and which of its charts, by their headings, is which figure
    "demo": {"Relative residual after each layer": "residual", "Steps by part": "steps"},
    "deep": {"How small it gets": "deep"},
}


def main() -> None:
    """Run each command with ``--charts`` and keep the charts that the paper shows."""
    for command, wanted in FIGURES.items():
        with tempfile.TemporaryDirectory() as folder:
            run = [sys.executable, "-m", "rankscope", command, "--charts", "--output", folder]
            subprocess.run(run, check=True)
            (table,) = Path(folder).glob("*.parquet")
            headings = [figures.heading(drawing) for drawing in results.read(table).all_drawings]
            for heading, name in wanted.items():
                number = headings.index(heading) + 1
                chart = f"{table.stem}{f'-{number}' * (number > 1)}.png"
                shutil.copy(table.with_name(chart), PAPER / f"{name}.png")
                print(f"paper/{name}.png")


if __name__ == "__main__":
    main()
