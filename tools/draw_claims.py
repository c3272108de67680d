"""Draw the first figure of every claim from a folder of ``reproduce`` into docs/images/claims.

``python tools/draw_claims.py rankscope-output``. Nothing is computed again: the files of results
hold their tables. The alternative text of a figure is written into it. Claims that were not run
keep the figure that they have.
"""

import sys
from pathlib import Path

from draw_figures import compact
from rankscope import figures, results
from rankscope.experiments.catalogue import entries
from rankscope.run import claim_runs

IMAGES = Path(__file__).parents[1] / "docs" / "images" / "claims"
LARGEST = 200_000
"""Bytes of a figure; one with more marks is left to the page that ``reproduce`` writes."""


def main() -> None:
    """Draw the first figure of each claim's first seed that is small enough."""
    folder = Path(sys.argv[1])
    IMAGES.mkdir(exist_ok=True)
    runs = sorted((run for run in claim_runs(folder) if not run.failure), key=lambda run: run.stem)
    first = {run.id: run for run in sorted(runs, key=lambda run: run.seed or 0, reverse=True)}
    for id_ in [id_ for id_ in entries("claim") if id_ in first]:
        result = results.read(folder / f"{first[id_].stem}.parquet")
        drawings = [*result.drawings, *(one for part in result.parts for one in part.drawings)]
        for drawing in drawings:
            path = figures.save(figures.draw(drawing, result), IMAGES / f"{id_.lower()}.svg")
            words = figures.description(drawing, result).replace("--", "–")
            drawn = compact(path.read_text(encoding="utf-8"))
            path.write_text(f"<!-- {words} -->{drawn}", encoding="utf-8")
            if len(drawn) <= LARGEST:
                break
            path.unlink()
        else:
            print(f"{id_} has no figure of {LARGEST:,} bytes or less.")


if __name__ == "__main__":
    main()
