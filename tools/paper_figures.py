"""Draw the figures of ``paper/`` with commands of rankscope: ``python tools/paper_figures.py``."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PAPER = Path(__file__).parents[1] / "paper"
FIGURES = {  # a command, and which of its charts is which figure
    ("demo",): {"-3": "residual", "-4": "steps"},
    ("deep",): {"": "deep"},
}


def main() -> None:
    """Run each command with ``--charts`` and keep the charts that the paper shows."""
    for command, charts in FIGURES.items():
        with tempfile.TemporaryDirectory() as folder:
            run = [sys.executable, "-m", "rankscope", *command, "--charts", "--output", folder]
            subprocess.run(run, check=True)
            (page,) = Path(folder).glob("*.html")
            for ending, name in charts.items():
                shutil.copy(page.with_name(f"{page.stem}{ending}.png"), PAPER / f"{name}.png")
                print(f"paper/{name}.png")


if __name__ == "__main__":
    main()
