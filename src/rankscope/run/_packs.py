"""Many small results in one file, so that a large sweep is read quickly.

A pack is written whole before its single files go, and is named by its content. Whatever ends the
packing, every result is then in the pack, or by itself, or in both; both count once.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import polars as pl

from rankscope.errors import InputError
from rankscope.run._folder import Folder, keys_in
from rankscope.run._results import SCHEMA, digest, notes, parquet, write

PACK_OF: Final = 1000
"""Results that are packed together, as soon as there are so many."""
SMALL: Final = 2**16
"""Bytes up to which a result is packed; larger ones are read quickly by themselves."""
_ENDING: Final = ".parquet"


def is_small(folder: Folder, key: str) -> bool:
    """Whether a result is small enough to be packed."""
    return folder.result(key).stat().st_size <= SMALL


def pack(folder: Folder, keys: Sequence[str]) -> None:
    """Put results into one file."""
    paths = [folder.result(key) for key in keys]
    noted = {key: notes(path)[key] for key, path in zip(keys, paths, strict=True)}
    content = parquet(scan(paths).collect(), noted)
    write(folder.packs / f"{digest(content)}{_ENDING}", content)
    for path in paths:
        path.unlink()


def paths_of_packs(folder: Folder) -> list[Path]:
    """Every pack there is."""
    return [folder.packs / f"{name}{_ENDING}" for name in keys_in(folder.packs, _ENDING)]


def problem(pack: Path) -> str:
    """What is wrong with a pack, or nothing: it is named by its content."""
    try:
        return "" if digest(pack.read_bytes()) == pack.stem else "it is not what was written"
    except OSError as error:
        return f"{error.strerror or error}"


def scan(paths: list[Path]) -> pl.LazyFrame:
    """Results one below the other, with the columns any of them has; null where one has not."""
    found = {name for path in paths for name in _columns(path)}
    return pl.scan_parquet(paths, schema=SCHEMA, missing_columns="insert", glob=False).select(
        [name for name in SCHEMA if name in found]
    )


def _columns(path: Path) -> list[str]:
    with told_if_damaged(path):
        return list(pl.read_parquet_schema(path))


@contextmanager
def told_if_damaged(path: Path) -> Iterator[None]:
    """What cannot be read is an error that says what to do; a file that is gone is one as it is."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise InputError(
            f"{path} is damaged ({error}); start the sweep again, which sets it aside and computes "
            "it anew."
        ) from error
