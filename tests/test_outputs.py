"""Every kind of output: what is no regular file, who may read it, links, and a full disk."""

import os
import resource
import stat
from contextlib import contextmanager

import pytest
import safetensors.torch
import torch

from rankscope import results, tables, trace
from rankscope.core.network import Network, Spec
from rankscope.errors import InputError
from rankscope.process import atomic_folder
from rankscope.show import figures, report

TRACE = trace(Network.random(Spec(2, 2, 8), seed=0), torch.randn(2, 5, 8))
OUTPUTS = {
    "trace.parquet": TRACE.save,
    "result.parquet": lambda path: results.write(TRACE.result, path),
    "table.parquet": lambda path: tables.write(TRACE.table, path, {}),
    "table.csv": lambda path: tables.write_csv(TRACE.table, path),
    "chart.html": lambda path: figures.save(TRACE.plot(), path),
    "chart.svg": lambda path: figures.save(TRACE.plot(), path),
    "chart.png": lambda path: figures.save(TRACE.plot(), path),
    "chart.json": lambda path: TRACE.plot().save(path),
    "scaled.png": lambda path: TRACE.plot().save(path, scale_factor=0.5),
    "named.txt": lambda path: TRACE.plot().save(str(path), format="svg"),
    "page.html": lambda path: report.write_html(report.page(TRACE.result), path),
}


@contextmanager
def full_disk(most_bytes=500):
    """No file may grow beyond some bytes, which is told as a full disk is; without root."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("name", OUTPUTS)
def test_no_output_does_harm(name, tmp_path):
    write, path = OUTPUTS[name], tmp_path / name
    os.mkfifo(path)
    with pytest.raises(InputError, match=f"{name} is a pipe, not a regular file; choose another"):
        write(path)
    assert stat.S_ISFIFO(path.lstat().st_mode)
    path.unlink()

    path.write_bytes(b"old")
    path.chmod(0o600)
    write(path)
    assert mode(path) == 0o600
    content = path.read_bytes()
    assert len(content) > 500

    path.write_bytes(b"old")
    with full_disk(), pytest.raises(InputError, match=f"{name} cannot be written: File too large"):
        write(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]

    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    write(path)
    assert (path.is_symlink(), mode(elsewhere)) == (True, 0o600)
    assert sorted(tmp_path.iterdir()) == sorted([elsewhere, path])


def test_files_of_a_result_leave_nothing_half_written_on_a_full_disk(tmp_path):
    with full_disk(), pytest.raises(InputError, match="cannot be written: File too large"):
        report.write(TRACE.result, tmp_path, charts=True)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_is_whole_or_not_there(tmp_path):
    """Safetensors has an error of its own for a full disk."""
    path, weights = tmp_path / "fixed", {"weight": torch.ones(1000)}

    def write():
        with atomic_folder(path) as unfinished:
            (unfinished / "config.json").write_text("{}")
            safetensors.torch.save_file(weights, unfinished / "model.safetensors")

    with full_disk(), pytest.raises(InputError, match=r"fixed cannot be written: .*too large"):
        write()
    assert list(tmp_path.iterdir()) == []
    path.mkdir()
    write()
    assert list(tmp_path.iterdir()) == [path]
    assert sorted(each.name for each in path.iterdir()) == ["config.json", "model.safetensors"]
    with pytest.raises(InputError, match="fixed is not empty; name a new folder"):
        write()
    assert list(tmp_path.iterdir()) == [path]
