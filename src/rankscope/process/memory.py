"""How much memory and address space there is, and what becomes of freed memory."""

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # settings of mallopt, as in malloc.h
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


def keep_freed_memory() -> None:
    """Let the memory of freed tensors stay with this process, for the next ones.

    glibc returns it to the system, and a fifth of the time of scaled arithmetic went into getting
    it back. Settings of the user take precedence; other C libraries are left alone.
    """
    if sys.platform != "linux" or {"MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"} & os.environ.keys():
        return
    if change := getattr(ctypes.CDLL(None), "mallopt", None):
        for setting, size in ((_TRIM_THRESHOLD, 2**29), (_MMAP_THRESHOLD, 2**25)):
            change(setting, size)
