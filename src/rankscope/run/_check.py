"""What a folder holds, each file looked at before it counts; damaged ones are set aside."""

from dataclasses import dataclass, field
from pathlib import Path

from rankscope.process.files import is_unfinished, settle
from rankscope.run import _packs, _records, _results
from rankscope.run._folder import Folder, keys_in


@dataclass
class Found:
    """The results and failures of a folder, by key."""

    packed: set[str] = field(default_factory=set)
    single: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    aside: dict[str, str] = field(default_factory=dict)
    """Files that were set aside, and why."""

    @property
    def done(self) -> set[str]:
        """Every run that has a whole result."""
        return self.packed | self.single


def counted(folder: Folder) -> Found:
    """What there is by name, files not looked into: quick, and changes nothing."""
    packed = {key for pack in _packs.paths_of_packs(folder) for key in _results.notes(pack)}
    single = set(keys_in(folder.results, ".parquet")) - packed
    failed = set(keys_in(folder.failures, ".json")) - packed - single
    return Found(packed, single, failed)


def done_in(folder: str | Path) -> set[str]:
    """Keys of the runs that a folder, which need not be there yet, has results of."""
    place = Folder(Path(folder))
    return counted(place).done if place.grid.is_file() else set()


def tidied(folder: Folder) -> Found:
    """What is whole; for the holder of the lock alone, since the rest is set aside or removed."""
    found = Found()
    for place in (folder.path, folder.results, folder.packs, folder.failures):
        _remove_unfinished(place)
    for pack in _packs.paths_of_packs(folder):
        if wrong := _packs.problem(pack):
            found.aside[_set_aside(folder, pack)] = wrong
        else:
            found.packed |= set(_results.notes(pack))
    written = {line.key: line.digest for line in _records.finished(folder) if line.digest}
    for key in keys_in(folder.results, ".parquet"):
        path = folder.result(key)
        if key in found.packed:  # an interruption between the pack and the removal
            path.unlink()
        elif wrong := _results.problem(path, key, written.get(key)):
            found.aside[_set_aside(folder, path)] = wrong
        else:
            found.single.add(key)
    _sort_out_failures(folder, found)
    return found


def _sort_out_failures(folder: Folder, found: Found) -> None:
    readable = _records.failures(folder)
    for key in keys_in(folder.failures, ".json"):
        path = folder.failures / f"{key}.json"
        if key in found.done:
            path.unlink()
        elif key not in readable:
            found.aside[_set_aside(folder, path)] = "it cannot be read"
        else:
            found.failed.add(key)


def _set_aside(folder: Folder, path: Path) -> str:
    """Move a file to where it does not count; its new name."""
    folder.aside.mkdir(exist_ok=True)
    number = 1 + len(list(folder.aside.iterdir()))
    place = folder.aside / f"{number}-{path.name}"
    path.replace(place)
    settle(folder.aside)
    settle(path.parent)
    return f"{folder.aside.name}/{place.name}"


def _remove_unfinished(place: Path) -> None:
    """Files that were being written when an earlier sweep was killed: see ``whole_file``."""
    if place.is_dir():
        for path in place.iterdir():
            if path.suffix in (".parquet", ".json") and is_unfinished(path):
                path.unlink()
