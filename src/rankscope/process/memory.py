"""How much memory and address space there is."""

import os
from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup/memory.max")
_MEMINFO = Path("/proc/meminfo")
_LIMITS, _STATM = Path("/proc/self/limits"), Path("/proc/self/statm")


def available_memory() -> int | None:
    """Bytes that this process can still have; None where that is not known."""
    known = []
    with suppress(OSError, ValueError, IndexError):
        line = next(
            row for row in _MEMINFO.read_text("utf-8").splitlines() if "MemAvailable" in row
        )
        known.append(int(line.split()[1]) * 1024)
    with suppress(OSError, ValueError):
        known.append(int(_CGROUP.read_text("utf-8")))
    if not known:
        with suppress(OSError, ValueError, AttributeError):
            known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(known, default=None)


def free_address_space() -> int | None:
    """Bytes of address space that a limit (``ulimit -v``) leaves; None without a limit."""
    with suppress(OSError, ValueError, StopIteration, AttributeError):
        rows = _LIMITS.read_text("utf-8").splitlines()
        limit = next(row for row in rows if row.startswith("Max address space")).split()[3]
        used = int(_STATM.read_text("utf-8").split()[0]) * os.sysconf("SC_PAGE_SIZE")
        return int(limit) - used  # int() raises for "unlimited"
    return None
