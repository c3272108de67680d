"""How much memory there is."""

import os
import subprocess
import sys

import pytest

from rankscope.process import memory


def test_memory_is_what_is_free_or_allowed(tmp_path, monkeypatch) -> None:
    info, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    info.write_text("MemTotal: 99 kB\nMemAvailable:    4 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", info)
    monkeypatch.setattr(memory, "_CGROUP", limit)
    assert memory.available_memory() == 4096
    limit.write_text("1000\n")
    assert memory.available_memory() == 1000
    limit.write_text("max\n")
    assert memory.available_memory() == 4096
    info.unlink()
    assert memory.available_memory() > 2**20


FAULTS = """
import resource, sys
from rankscope.process import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()
for round in range(12):
    if round == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    some = [bytearray(24 << 20) for _ in range(3)]
    del some
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_freed_memory_is_used_again() -> None:
    bare = {name: value for name, value in os.environ.items() if "MALLOC" not in name}

    def faults(how: str, **settings: str) -> int:
        command = [sys.executable, "-c", FAULTS, how]
        ran = subprocess.run(command, env=bare | settings, capture_output=True, check=True)
        return int(ran.stdout)

    returned = faults("returned")
    if returned < 1000:
        pytest.skip("this C library keeps freed memory by itself")
    assert faults("kept") < returned / 20
    # the user's own setting counts
    assert faults("kept", MALLOC_TRIM_THRESHOLD_="131072") > returned / 2
