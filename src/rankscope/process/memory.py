"""How much memory there is."""

import os
from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup/memory.max")
_MEMINFO = Path("/proc/meminfo")


def available_memory() -> int | None:
    """Bytes that this process can still have; None where that is not known."""
    known = []
    with suppress(OSError, ValueError, IndexError):
        line = next(row for row in _MEMINFO.read_text().splitlines() if "MemAvailable" in row)
        known.append(int(line.split()[1]) * 1024)
    with suppress(OSError, ValueError):
        known.append(int(_CGROUP.read_text()))
    if not known:
        with suppress(OSError, ValueError, AttributeError):
            known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(known, default=None)
