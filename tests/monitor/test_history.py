"""The file of a run survives kills, full disks and readers, and appending stays cheap."""

import errno
import math
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rankscope import tables
from rankscope.errors import InputError
from rankscope.monitor import _history
from rankscope.monitor._history import (
    JOURNAL,
    TABLE,
    Alarm,
    History,
    RunFile,
    RunReader,
    StepRecord,
    new_folder,
    read_run,
)

NAN, INF = math.nan, math.inf
WRITER = Path(__file__).with_name("run_writer.py")


def record(step, value=0.5, **more):
    values = {("rank/residual", layer): value / layer for layer in (1, 2)}
    return StepRecord(step, {**values, ("loss", None): 2.0, **more})


def run_of(count, folder=None):
    """A history of some records, written one after another if there is a folder."""
    history, file = History({"layers": 2}), None if folder is None else RunFile(folder)
    for number in range(count):
        history.add(record(10 * number, 1 / (number + 1)))
        if file is not None:
            file.append(history)
    return history, file


def same(history, other):
    """Whether two histories agree, NaN included and in the same order."""

    def parts(run):
        records = [(r.step, list(r.values.items())) for r in run.records]
        return repr((run.facts, list(run.predicted.items()), records, run.alarms))

    return parts(history) == parts(other)


def hostile():
    """Records with what JSON and tables find hard, and two of one step."""
    history = History(
        {"layers": 2, "model": "ein Modell „ß“\n", "tokens": NAN},
        {("rank/residual", 1): (0.1, INF), ("loss", None): (NAN, 2.0)},
    )
    history.add(StepRecord(0, {("rank/residual", 1): 0.6}))
    history.add(StepRecord(0, {("loss", None): 3.0}))  # at the step of the baseline, which stays
    history.add(StepRecord(3, {}))
    history.add(StepRecord(7, {("rank/residual", 1): NAN, ("x", None): -INF, ("y", 2): 5e-324}))
    history.alarms = [Alarm("non-finite", 7, None, NAN, "layer 1: NaN – «so»", "u", None)]
    return history


def test_a_parquet_file_returns_what_was_written(tmp_path):
    history = hostile()
    RunFile(tmp_path).begin(history)
    assert same(read_run(tmp_path), history)
    assert same(read_run(tmp_path / TABLE), history)
    assert same(read_run(str(tmp_path)), history)


def test_a_journal_returns_what_was_written(tmp_path):
    history = hostile()
    records, alarms = history.records, history.alarms
    file, history.records, history.alarms = RunFile(tmp_path), records[:1], []
    file.begin(history)
    for number in range(2, len(records) + 1):
        history.records = records[:number]
        history.alarms = alarms if number == len(records) else []
        file.append(history)
    assert (tmp_path / JOURNAL).stat().st_size > 100
    assert same(read_run(tmp_path), history)
    history.alarms = [replace(alarms[0], ended=9)]  # alarms may also change without a record
    file.append(history)
    assert read_run(tmp_path).alarms[0].ended == 9


def test_the_parquet_file_can_be_read_by_others_and_moved(tmp_path):
    history, _ = run_of(3, tmp_path / "run")
    RunFile(tmp_path / "run").begin(history)
    table, provenance = tables.read(tmp_path / "run" / TABLE)
    assert table.columns == ["step", "layer", "metric", "value"]
    assert table.height == 9
    assert provenance["facts"] == {"layers": 2}
    (tmp_path / "run" / TABLE).rename(tmp_path / "elsewhere.parquet")
    assert same(read_run(tmp_path / "elsewhere.parquet"), history)


def test_a_journal_that_is_torn_anywhere_gives_the_records_before(tmp_path):
    history, file = run_of(4, tmp_path)
    history.add(record(40))
    history.alarms = [Alarm("rank-collapse", 40, 2, 0.1, "layer 2")]
    file.append(history)
    content = (tmp_path / JOURNAL).read_bytes()
    lines = content.count(b"\n") - 1
    merged = len(history.records) - lines
    for length in range(len(content) + 1):
        (tmp_path / JOURNAL).write_bytes(content[:length])
        read = read_run(tmp_path)
        count = merged + max(0, content[:length].count(b"\n") - 1)
        assert same(replace(read, alarms=[]), replace(history, records=history.records[:count],
                                                      alarms=[]))  # fmt: skip
        assert bool(read.alarms) == (count == len(history.records))
    (tmp_path / JOURNAL).write_bytes(content + b"\x00" * 64 + b"\n" + b"{}\n")
    assert same(read_run(tmp_path), history)


def test_a_resumed_run_continues_a_torn_journal(tmp_path):
    run_of(4, tmp_path)
    journal = tmp_path / JOURNAL
    journal.write_bytes(journal.read_bytes()[:-7])
    read = read_run(tmp_path)
    assert len(read.records) == 3
    file = RunFile(tmp_path)
    for number in (3, 4, 5):
        read.add(record(10 * number))
        file.append(read)
        assert same(read_run(tmp_path), read)


def test_a_run_that_goes_back_replaces_what_came_later(tmp_path):
    history, file = run_of(80, tmp_path)  # 64 of them are in the Parquet file
    reader = RunReader(tmp_path)
    assert len(reader.read().records) == 80
    history.add(record(500, 9.0))
    file.append(history)
    assert [r.step for r in read_run(tmp_path).records] == [*range(0, 500, 10), 500]
    assert same(reader.read(), history)
    history.records[-1] = record(500, 8.0)  # as long as before, and yet another run
    file.append(history)
    assert same(read_run(tmp_path), history)


def test_rewinding_keeps_the_baseline_and_opens_alarms():
    history = run_of(5)[0]
    alarms = [("a", 0, None), ("b", 10, 20), ("c", 10, 40), ("d", 40, None)]
    history.alarms = [Alarm(rule, step, 1, 0.1, "", ended=ended) for rule, step, ended in alarms]
    history.rewind(30)
    assert [r.step for r in history.records] == [0, 10, 20]
    assert [(a.rule, a.ended) for a in history.alarms] == [("a", None), ("b", 20), ("c", None)]
    history.rewind(0)
    assert [r.step for r in history.records] == [0]
    assert [a.rule for a in history.alarms] == ["a"]


def test_appending_costs_as_much_as_the_record(tmp_path, monkeypatch):
    written = []
    write = tables.write
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(
        tables, "write", lambda table, *more: written.append(table.height) or write(table, *more)
    )
    for count in (500, 3000):
        written.clear()
        history, _ = run_of(count, tmp_path / str(count))
        assert sum(written) <= 4 * 3 * count  # 3 values a record, written a fixed number of times
        assert same(read_run(tmp_path / str(count)), history)
    journal = (tmp_path / "3000" / JOURNAL).stat().st_size
    history.add(record(10**6))
    file = RunFile(tmp_path / "3000")
    file.begin(history)
    history.add(record(10**6 + 1))
    history.alarms *= 100
    file.append(history)
    assert (tmp_path / "3000" / JOURNAL).stat().st_size < min(journal, 300)


def test_a_reader_reads_what_is_new(tmp_path, monkeypatch):
    history, file = run_of(3, tmp_path)
    reader, reads = RunReader(tmp_path), []
    read = tables.from_parquet
    monkeypatch.setattr(tables, "from_parquet", lambda path: reads.append(path) or read(path))
    for number in range(3, 200):
        assert same(reader.read(), history)
        history.add(record(10 * number))
        file.append(history)
    assert same(reader.read(), history)
    assert len(reads) == 1 + 3  # the table at first, and after merges at 65, 129 and 193 records


def test_a_reader_does_not_go_back_in_time(tmp_path, monkeypatch):
    """A merge between its two files: what it saw before is still there."""
    history, file = run_of(5, tmp_path)
    read = tables.from_parquet
    merges = [1]

    def merged_meanwhile(path):
        table = read(path)
        if merges:
            merges.pop()
            file.begin(history)
        return table

    monkeypatch.setattr(tables, "from_parquet", merged_meanwhile)
    assert same(read_run(tmp_path), history)
    assert not merges


def test_records_that_were_not_appended_follow_with_the_next(tmp_path):
    history, file = run_of(3, tmp_path)
    history.add(record(30))
    history.add(record(40))
    file.append(history)
    assert same(read_run(tmp_path), history)


def test_a_write_that_fails_is_made_up_for(tmp_path, monkeypatch):
    """A full disk: while nothing can be written that is said; nothing is lost afterwards."""
    history, file = run_of(3, tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = read_run(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        for number in (3, 4):
            history.add(record(10 * number))
            with pytest.raises(InputError, match="cannot be written: No space left"):
                file.append(history)
    assert len(read_run(tmp_path).records) >= len(before.records)
    history.add(record(50))
    file.append(history)
    assert same(read_run(tmp_path), history)
    assert sorted(path.name for path in tmp_path.iterdir()) == [JOURNAL, TABLE]


def test_one_write_that_fails_costs_nothing(tmp_path, monkeypatch):
    history, file = run_of(3, tmp_path)
    fsync, failures = os.fsync, [OSError(errno.EIO, "broken")]

    def once(descriptor):
        if failures:
            raise failures.pop()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", once)
    history.add(record(30))
    file.append(history)
    assert not failures
    assert same(read_run(tmp_path), history)


def test_a_folder_that_vanishes_is_written_again(tmp_path):
    history, file = run_of(3, tmp_path / "run")
    for path in (tmp_path / "run").iterdir():
        path.unlink()
    (tmp_path / "run").rmdir()
    history.add(record(30))
    file.append(history)
    assert same(read_run(tmp_path / "run"), history)


def test_two_processes_do_not_write_one_run(tmp_path):
    history, file = run_of(3, tmp_path)
    other, _ = run_of(2, tmp_path)
    history.add(record(30))
    with pytest.raises(InputError, match="another process writes to"):
        file.append(history)
    assert same(read_run(tmp_path), other)


def test_what_a_killed_process_left_is_removed(tmp_path):
    (tmp_path / ".rankscope-0123456789abcdef").write_bytes(b"half of a table")
    run_of(2, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [JOURNAL, TABLE]


def test_folders_that_hold_no_run_are_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    run_of(1, tmp_path / "runs" / "monitor-0001")
    (tmp_path / "empty").mkdir()
    other = tables.frame({"metric": ["rank"], "value": [1.0]})
    tables.write(other, tmp_path / "other.parquet", {})
    (tmp_path / "no.parquet").write_bytes(b"PAR1 and no more")
    wrong = {
        "nowhere": "does not exist; give the folder",
        "nowhere.parquet": "does not exist; give the folder of a run or its Parquet file",
        "file": "is no run of a monitor",
        "empty": "there is no monitor.parquet",
        "runs": "it has the runs monitor-0001",
        "other.parquet": "holds no run of a monitor but another table",
        "no.parquet": "is damaged",
    }
    for name, words in wrong.items():
        with pytest.raises(InputError, match=words):
            read_run(tmp_path / name)
    with pytest.raises(InputError, match="is a file; name a folder"):
        RunFile(tmp_path / "file").begin(run_of(1)[0])
    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(InputError, match="Permission denied"):
        read_run(tmp_path / "runs" / "monitor-0001")


def denied(path, *_, **__):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


@pytest.mark.parametrize("break_it", [
    lambda more: more.pop("records"),
    lambda more: more.update(alarms=[{"rule": "x"}]),
    lambda more: more.update(records=[[0, "many"]]),
])  # fmt: skip
def test_metadata_that_is_not_ours_is_refused(tmp_path, monkeypatch, break_it):
    dumps = _history.json.dumps

    def broken(value, **more):
        if "token" in value:
            break_it(value)
        return dumps(value, **more)

    monkeypatch.setattr(_history.json, "dumps", broken)
    RunFile(tmp_path).begin(run_of(2)[0])
    with pytest.raises(InputError, match="is not a run that can be read"):
        read_run(tmp_path)


def test_folders_are_numbered(tmp_path):
    assert new_folder(tmp_path).name == "monitor-0001"
    for name in ("monitor-0007", "monitor-old", "monitor-"):
        (tmp_path / name).mkdir()
    assert new_folder(tmp_path).name == "monitor-0008"


# Kills. ``run_writer.py`` writes a run whose records are chained: each holds a number that depends
# on all before it, so that a mix of two runs is noticed.


def check_chain(history):
    """Every record follows from the one before; returns how many there are."""
    before = 0.0
    for number, entry in enumerate(history.records):
        run, chain = entry.get("run"), entry.get("chain")
        assert chain == (before * 31 + run * 7 + number) % 1_000_003, number
        assert entry.step == number
        before = chain
    raised = [alarm.step for alarm in history.alarms]
    assert raised == [r.step for r in history.records if r.step % 5 == 4]  # with their records
    return len(history.records)


def start(folder, *arguments):
    environment = {**os.environ, "POLARS_MAX_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(WRITER), str(folder), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )


def test_a_run_killed_at_every_step_of_its_writes_is_resumed(tmp_path):
    """A process forks for every file operation of a run, and each child is killed there."""
    with start(tmp_path, "everywhere") as writer:
        kills = 0
        for line in writer.stdout:
            name, acknowledged, ending = line.decode().split()
            folder = tmp_path / name
            if ending == "killed":
                kills += 1
                count = check_chain(read_run(folder)) if (folder / TABLE).exists() else 0
                assert int(acknowledged) <= count <= int(acknowledged) + 1
                was_killed = True
            else:
                assert ending == "done"
                assert check_chain(read_run(folder)) == 7 + was_killed
                assert sorted(path.name for path in folder.iterdir()) == [JOURNAL, TABLE]
                was_killed = False
            os.write(writer.stdin.fileno(), b".")
    assert writer.returncode == 0
    assert kills > 50


def test_a_run_killed_at_any_time_loses_nothing_that_was_acknowledged(tmp_path):
    draw = random.Random(0)
    count = 0
    for _ in range(12):
        with start(tmp_path, "forever") as writer:
            for _ in range(draw.randrange(1, 40)):
                acknowledged = int(writer.stdout.readline())
            time.sleep(draw.uniform(0, 0.003))
            writer.send_signal(signal.SIGKILL)
            rest = writer.stdout.read().split(b"\n")
        acknowledged = max([acknowledged, *(int(number) for number in rest[:-1])])
        before, count = count, check_chain(read_run(tmp_path))
        assert acknowledged <= count <= acknowledged + 1
        assert count > before


def test_a_reader_sees_one_moment_while_a_run_is_written(tmp_path):
    """Merges after every third record, and runs that go back and begin anew."""
    with start(tmp_path, "restless") as writer:
        writer.stdout.readline()
        seen, runs = set(), set()
        reader, end = RunReader(tmp_path), time.monotonic() + 2.5
        while time.monotonic() < end:
            for history in (reader.read(), read_run(tmp_path)):
                seen.add(check_chain(history))
                runs |= {record.get("run") for record in history.records}
        writer.kill()
    assert len(seen) > 10
    assert len(runs) > 10
