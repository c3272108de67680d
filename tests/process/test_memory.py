"""How much memory there is."""

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
