"""What was run in a folder, how it ended and how long it took: a line of JSON for each run.

Times are kept here and not in the results, whose files are equal where their numbers are. Light
enough to be read before anything heavy is imported.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

FOLDER: Final = Path("rankscope-output")
"""Where files go unless another folder is named."""
NAME: Final = "runs.jsonl"
VERDICTS: Final = ("holds", "fails", "depends", "not tried")
"""Those of ``rankscope.results.Verdict``, which is heavier to import."""


@dataclass(frozen=True)
class Run:
    """One claim, run once: its whole configuration is in the file ``<stem>.parquet``."""

    id: str
    stem: str
    """What its files are called; nothing if it failed to run."""
    seed: int
    scale: str
    verdict: str
    """In full, such as "holds; beyond: depends on the weights' scale"."""
    judgement: dict[str, str] | None
    beyond: dict[str, str] | None
    key_figure: tuple[str, float] | None
    seconds: float | None
    """How long it took, if that is known."""
    finished: str
    """When, in UTC."""
    failure: str = ""
    """Why it could not be run, if it could not."""


def append(folder: Path, run: Run) -> None:
    """Write a run down; a line is written as a whole, also when two programs do so at once."""
    append_line(folder / NAME, asdict(run))


def append_line(path: Path, content: Mapping[str, Any]) -> None:
    """Add a line of JSON to a file, as a whole and on the disk, after whatever ends there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(content, allow_nan=False) + "\n"
    with path.open("ab+") as file:
        if file.seek(0, os.SEEK_END) and not _ends_a_line(file):
            line = f"\n{line}"  # an interruption has left half a line
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def runs(folder: Path) -> list[Run]:
    """Every run whose files are still there, the last one of each; failures that were not mended.

    A line that cannot be read, as an interruption may leave one, is passed over.
    """
    try:
        lines = (folder / NAME).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found: dict[str, Run] = {}
    for run in filter(None, map(_read, lines)):
        found.pop(_failed(run.id), None)
        key = _failed(run.id) if run.failure else run.stem
        found.pop(key, None)  # so that the last run stands last
        found[key] = run
    return [run for run in found.values() if run.failure or _is_there(folder, run)]


def last(listed: Sequence[Run], id_: str) -> Run | None:
    """The last run of a claim, if there is one."""
    return next((run for run in reversed(listed) if run.id == id_), None)


def _ends_a_line(file: BinaryIO) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _failed(id_: str) -> str:
    return f"failure of {id_}"


def _is_there(folder: Path, run: Run) -> bool:
    return (folder / f"{run.stem}.parquet").is_file()


def _read(line: str) -> Run | None:
    try:
        kept = json.loads(line)
        if not isinstance(kept, dict):
            return None
        figure = kept.pop("key_figure")
        if not all(_is_judgement(kept[name]) for name in ("judgement", "beyond")):
            return None
        run = Run(**kept, key_figure=None if figure is None else (str(figure[0]), float(figure[1])))
        return run if _is_sound(run) else None
    except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError):
        return None


def _is_sound(run: Run) -> bool:
    """Whether every field is what it should be: the file may have been written by anybody."""
    words = (run.id, run.stem, run.scale, run.verdict, run.finished, run.failure)
    numbers = (run.seconds, None if run.key_figure is None else run.key_figure[1])
    return (
        all(isinstance(each, str) for each in words)
        and type(run.seed) is int
        and all(each is None or _is_finite(each) for each in numbers)
        and run.stem == Path(run.stem).name
    )


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _is_judgement(value: Any) -> bool:
    """Whether it is none, or a verdict there is with what it is about, in words."""
    if value is None:
        return True
    return (
        isinstance(value, dict)
        and set(value) == {"verdict", "domain", "on"}
        and all(isinstance(each, str) for each in value.values())
        and value["verdict"] in VERDICTS
    )
