"""Where everything of a sweep lies in its folder, and whether a folder is one of a sweep."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankscope.errors import InputError
from rankscope.process.files import settle

FORMAT: Final = 1
"""Of the folder; a later one may be laid out otherwise."""
_KEY: Final = re.compile(r"[0-9a-f]{8,64}")


@dataclass(frozen=True)
class Folder:
    """The places of a sweep's folder."""

    path: Path

    @property
    def grid(self) -> Path:
        """What was asked for, and the mark by which a folder is known to be a sweep's."""
        return self.path / "grid.json"

    @property
    def runs(self) -> Path:
        """Every run of the grid: its key, its settings and all its fields."""
        return self.path / "runs.parquet"

    @property
    def results(self) -> Path:
        """One file for each run that is done, until it is packed."""
        return self.path / "results"

    @property
    def packs(self) -> Path:
        """Many results in one file."""
        return self.path / "packs"

    @property
    def failures(self) -> Path:
        """One file for each run that failed."""
        return self.path / "failures"

    @property
    def aside(self) -> Path:
        """Files that turned out to be damaged."""
        return self.path / "aside"

    @property
    def journal(self) -> Path:
        """A line for each run that was carried out."""
        return self.path / "sweep.jsonl"

    @property
    def lock(self) -> Path:
        """Held by the sweep that is running."""
        return self.path / ".lock"

    def result(self, key: str) -> Path:
        """Where the result of a run is, unless it is packed."""
        return self.results / f"{key}.parquet"


def new_or_known(path: str | Path) -> Folder:
    """The folder of a sweep to run: one that is new, empty, or a sweep's already."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InputError(f"{str(path)!r} is no Unicode text; name another folder.") from None
    try:
        folder = Folder(Path(path).absolute())  # a program may go elsewhere in the midst of a sweep
        is_new = not folder.path.exists()
        folder.path.mkdir(parents=True, exist_ok=True)
        if is_new:
            settle(folder.path.parent)
        foreign = sorted(each.name for each in folder.path.iterdir() if each.name[0] != ".")
    except OSError as error:
        raise InputError(
            f"{path} cannot be a sweep's folder: {error.strerror or error}."
        ) from error
    if foreign and not folder.grid.exists():
        raise InputError(
            f"{path} holds something else than a sweep ({foreign[0]}); name a folder that is new, "
            "empty, or a sweep's."
        )
    if foreign:
        _check_mark(folder)
    return folder


def known(path: str | Path) -> Folder:
    """The folder of a sweep to read."""
    folder = Folder(Path(path))
    if not folder.grid.is_file():
        raise InputError(f"{path} is no folder of a sweep: it has no {folder.grid.name}.")
    _check_mark(folder)
    return folder


def keys_in(place: Path, ending: str) -> list[str]:
    """The keys files are named by; files that are being written, or are no one's, are left out."""
    if not place.is_dir():
        return []
    names = sorted(path.name for path in place.iterdir() if path.suffix == ending)
    stems = (name.removesuffix(ending) for name in names)
    return [stem for stem in stems if is_key(stem)]


def is_key(text: str) -> bool:
    """Whether a text can be the key of a run, and hence the name of a file.

    >>> is_key("0123456789ab"), is_key("../results")
    (True, False)
    """
    return _KEY.fullmatch(text) is not None


def _check_mark(folder: Folder) -> None:
    try:
        written = json.loads(folder.grid.read_text(encoding="utf-8"))
        found = written["rankscope_sweep"]
    except (OSError, ValueError, TypeError, KeyError):
        raise InputError(
            f"{folder.grid} is not a sweep's, or is damaged; name another folder, or, if this one "
            f'is a sweep\'s, write {{"rankscope_sweep": {FORMAT}}} into that file.'
        ) from None
    if found != FORMAT:
        raise InputError(
            f"{folder.path} was laid out by another version of rankscope (format {found!r}, here "
            f"{FORMAT}); name another folder."
        )
