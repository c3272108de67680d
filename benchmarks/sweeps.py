"""Do two workers halve a sweep, what does one run cost beside its work, how fast is it read?"""

import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import polars as pl

from measuring import Ratio, interleaved
from rankscope import run as sweeping
from rankscope import tables
from rankscope.run import Processes, RayEngine, Run
from rankscope.run._results import described, to_bytes, write
from rankscope.run._store import RunRecord, Store

GRID = {
    "layers": 8, "heads": 4, "width": 64, "length": 32, "samples": 4,
    "axes": {"seed": {"from": 0, "to": 199}},
}  # fmt: skip
EMPTY, FILES = 300, 10_000
LOCAL, ON_RAY = 1.7, 1.5
OVERHEAD, READING = 0.050, 5.0


def nothing(run: Run) -> pl.DataFrame:
    """A result of the usual size, at no cost."""
    values = [float(run.fields["seed"] + layer) for layer in range(13)]
    return tables.frame({"layer": range(13), "metric": ["residual"] * 13, "value": values})


def runs_of(count: int) -> list[Run]:
    """Runs that ``nothing`` can do."""
    return [Run(f"{at:012x}", "nothing", {"seed": at}, {"seed": at}) for at in range(count)]


def speed() -> list[Ratio]:
    """The same 200 runs with one worker, with two, and on Ray; each starts its processes anew."""
    runs = sweeping.plan(sweeping.read_grid(GRID)).runs

    def timed(engine: Callable[[], sweeping.Engine]) -> Callable[[], object]:
        def job() -> object:
            with tempfile.TemporaryDirectory() as folder:
                return sweeping.drive(runs, folder, engine=engine(), work=sweeping.execute)

        return job

    single, two = timed(lambda: Processes(1, threads=1)), timed(lambda: Processes(2, threads=1))
    local = interleaved({"one": single, "two": two}, rounds=3)
    with two_cpus_of_ray():  # whose own processes take some of the cores
        on_ray = interleaved({"one": single, "ray": timed(RayEngine)}, rounds=2)
    for name, sweep_seconds in (("two", local), ("ray", on_ray)):
        print(f"200 runs, one {sweep_seconds['one']:6.1f} s, {name} {sweep_seconds[name]:6.1f} s, "
              f"{sweep_seconds.ratio('one', name):.2f} × as fast")  # fmt: skip
    return [
        Ratio("200 runs: two workers / one", local.ratio("two", "one"), 1 / LOCAL),
        Ratio("200 runs: Ray on two CPUs / one worker", on_ray.ratio("ray", "one"), 1 / ON_RAY),
    ]


@contextmanager
def two_cpus_of_ray() -> Iterator[None]:
    """A Ray of our own, which engines find and leave running."""
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder) / "token"
        token.write_text(secrets.token_hex(32), encoding="ascii")
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        import ray

        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        try:
            yield
        finally:
            ray.shutdown()


def overhead() -> list[Ratio]:
    """What a run costs beside its work: from the first outcome to the last, with no work at all."""
    ended: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        sweeping.drive(
            runs_of(EMPTY),
            folder,
            engine=Processes(1),
            work=import_module("sweeps").nothing,  # by the name a worker imports it by
            on_outcome=lambda *_: ended.append(time.perf_counter()),
        )
    seconds = (ended[-1] - ended[0]) / (EMPTY - 1)
    print(f"a run that does nothing, kept on the disk: {seconds * 1e3:.1f} ms")
    return [Ratio("overhead of a run / 50 ms", seconds / OVERHEAD, 1.0)]


def reading() -> list[Ratio]:
    """All rows of 10,000 results, each in a file of its own."""
    runs = runs_of(FILES)
    with tempfile.TemporaryDirectory() as name, Store(Path(name), "sweep", create=True) as store:
        ended = []
        for run in runs:
            content = to_bytes(run, nothing(run))
            write(Path(name), run.key, content)
            ended.append(RunRecord(run.key, "nothing", {}, 0.0, **described(run.key, content)))
        store.note(*ended)
        store.ask(((run.key, run.axes) for run in runs), {})
        rows = []
        job = {"read": lambda: rows.append(sweeping.table(name).collect().height)}
        seconds = interleaved(job, rounds=3)["read"]
    assert set(rows) == {13 * FILES}
    print(f"10,000 results, each checked, into one table: {seconds:.2f} s")
    return [Ratio("reading 10,000 files / 5 s", seconds / READING, 1.0)]


def main() -> list[Ratio]:
    """Reading and overhead first: they are soon over."""
    return reading() + overhead() + speed()


if __name__ == "__main__":
    main()
