"""A damaged file is refused, whatever the damage: it never gives other numbers.

``RANKSCOPE_DAMAGES=1200`` damages each kind of file so often.
"""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rankscope import results, run, tables, trace
from rankscope.core.network import Network, Spec
from rankscope.core.tracing import Trace
from rankscope.errors import RankscopeError

DAMAGES = int(os.environ.get("RANKSCOPE_DAMAGES", "30"))
GRID = {"heads": 1, "width": 8, "length": 4, "samples": 1, "axes": {"layers": [1, 2]}}


def flipped(content: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 2, 8))):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)


def truncated(content: bytearray, chance: random.Random) -> None:
    del content[chance.randrange(len(content)) :]


def zeroed(content: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(content))
    stop = min(len(content), start + chance.choice((1, 8, 64, 512)))
    content[start:stop] = bytes(stop - start)


def swapped(content: bytearray, chance: random.Random) -> None:
    size = chance.choice((1, 8, 64))
    first, second = (chance.randrange(len(content) - size) for _ in range(2))
    if abs(first - second) >= size:
        one, other = content[first : first + size], content[second : second + size]
        content[first : first + size], content[second : second + size] = other, one


def extended(content: bytearray, chance: random.Random) -> None:
    content += chance.randbytes(chance.choice((1, 8, 64)))


def digits_changed(content: bytearray, chance: random.Random) -> None:
    """What nothing but a digest notices: a number in JSON that stays one."""
    digits = [place for place, byte in enumerate(content) if chr(byte).isdigit()]
    content[chance.choice(digits)] = ord(chance.choice("123456789"))


KINDS_OF_DAMAGE = (flipped, truncated, zeroed, swapped, extended, digits_changed)


def of_trace(path: Path) -> Any:
    loaded = Trace.load(path)
    return loaded.columns, loaded.provenance


def of_result(path: Path) -> Any:
    result = results.read(path)
    return {**vars(result), "table": result.table.to_dicts()}


def of_table(path: Path) -> Any:
    table, provenance = tables.read(path)
    return table.to_dicts(), provenance


def of_sweep(path: Path) -> Any:
    folder = path.parent if path.name == "runs.sqlite" else path.parents[1]
    return run.table(folder).collect().to_dicts()


def of_status(path: Path) -> Any:
    found = run.status(path.parent)
    return found.total, found.done, found.failures


def of_claims(path: Path) -> Any:
    return run.claim_runs(path.parent)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Callable]]:
    """A file of every kind that rankscope writes and reads, with its reader."""
    folder = tmp_path_factory.mktemp("written")
    traced = trace(Network.random(Spec(2, 2, 8), seed=0), torch.randn(2, 5, 8))
    traced.save(folder / "trace.parquet")
    results.write(traced.result, folder / "result.parquet")
    tables.write(traced.table, folder / "table.parquet", {"seed": 0})
    swept = run.sweep(GRID, folder / "sweep", engine="inline")
    assert swept.done == 2
    (reproduced,) = run.reproduce(["D8"], folder / "claims")
    assert reproduced.result is not None
    return {
        "trace": (folder / "trace.parquet", of_trace),
        "result": (folder / "result.parquet", of_result),
        "table": (folder / "table.parquet", of_table),
        "run of a sweep": (next(folder.glob("sweep/results/*.parquet")), of_sweep),
        "database of a sweep": (folder / "sweep" / "runs.sqlite", of_sweep),
        "status of a sweep": (folder / "sweep" / "runs.sqlite", of_status),
        "claims": (folder / "claims" / "runs.sqlite", of_claims),
    }


def outcome(read: Callable[[Path], Any], path: Path) -> str:
    try:
        return repr(read(path))
    except RankscopeError as error:
        message = str(error)
        assert str(path.parent) in message  # which file, and what to do about it
        assert any(word in message for word in ("another", "again", "there is no"))
        return "refused"


@pytest.mark.parametrize(
    "kind",
    [
        *("trace", "result", "table", "run of a sweep"),
        *("database of a sweep", "status of a sweep", "claims"),
    ],
)
def test_no_damaged_file_gives_other_numbers(kind, written, tmp_path):
    original, read = written[kind]
    expected, content = repr(read(original)), original.read_bytes()
    root = original.parents[1] if original.parent.name == "results" else original.parent
    copy = shutil.copytree(root, tmp_path / "copy") / original.relative_to(root)
    accepted = []
    for number in range(DAMAGES):
        chance = random.Random(f"{kind} {number}")
        harm, damaged = chance.choice(KINDS_OF_DAMAGE), bytearray(content)
        harm(damaged, chance)
        copy.write_bytes(damaged)
        if outcome(read, copy) not in ("refused", expected):
            accepted.append(f"{harm.__name__} {number}")
    assert not accepted, f"{len(accepted)} of {DAMAGES}: {accepted[:20]}"
