"""Hostile calls by the thousand: every public name, good arguments and one or two bad ones.

``python tests/fuzz/campaign.py --calls 100000 --processes 2`` prints, for each area, how many calls
were answered, refused with an error of ours, ended in a foreign error, or did not end. It fails if
there is one of the last two, a warning included. Workers are processes of their own, so that one
that hangs inside a library can be ended; call n of a seed is the same in every run.
"""

import argparse
import contextlib
import faulthandler
import io
import itertools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
LIMIT = 10
"""Seconds a call may take."""
BROKEN = 3
"""How a worker ends that failed outside a call."""
MEMORY = 6 * 2**30
ENDINGS = ("answered", "refused", "foreign", "hung")


class Hang(BaseException):
    """Raised into a call that takes too long."""


def chosen(number, seed, rows):
    """Call ``number``: its row, its arguments, and which of them are hostile under which name."""
    import hostile

    dice = random.Random(f"{seed}/{number}")
    (row,) = dice.choices(rows, [row.weight for row in rows])
    arguments = row.good()
    bad = {}
    names = list(arguments)
    for name in dice.sample(names, min(len(names), dice.choice((1, 1, 1, 2)))):
        group = _alike(arguments[name]) if dice.random() < 0.7 else hostile.HOSTILE
        kind = dice.choice(list(group))
        value = group[kind]()
        if name in ("on_step", "metrics", "run") and callable(value):
            continue  # what a caller's own function raises is the caller's
        wrapping = dice.choice(("", "", "", "", "list", "among", "instead", "dict"))
        if wrapping == "list":
            value = [value]
        elif wrapping == "among" and isinstance(arguments[name], tuple | list):
            value = [*arguments[name], value]
        elif wrapping == "instead" and isinstance(arguments[name], tuple | list):
            value = [*arguments[name][1:], value]
        elif wrapping == "dict":
            value = {"a": value}
        bad[name] = f"{wrapping} {kind}".strip()
        arguments[name] = value
    return row, arguments, bad


def _alike(good):
    """Hostile values of the right kind, or nearly so: those get furthest."""
    import hostile

    while isinstance(good, tuple | list) and good:
        good = good[0]
    return next((group for kind, group in hostile.LIKE if isinstance(good, kind)), hostile.HOSTILE)


def call(row, arguments):
    """Make the call, and begin to go through what it gives."""
    given = [value for name, value in arguments.items() if name.startswith("*")]
    named = {name: value for name, value in arguments.items() if not name.startswith("*")}
    answer = row.call(*given, **named)
    if isinstance(answer, Iterator):
        list(itertools.islice(answer, 3))
    elif isinstance(answer, contextlib._GeneratorContextManager):
        with answer:
            pass


def outcome(row, arguments):
    """How a call ends, and for a foreign error or a hang where."""
    from rankscope.errors import RankscopeError

    def too_long(*_):
        raise Hang

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LIMIT)
    faulthandler.dump_traceback_later(2 * LIMIT, exit=True)  # if the alarm is not heard
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("error")
            call(row, arguments)
        return "answered", ""
    except RankscopeError as error:
        return ("refused", "") if str(error).strip() else ("foreign", "an error without words")
    except Hang as error:
        return "hung", _place(error)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a polars panic is no Exception
        return "foreign", f"{type(error).__name__}: {str(error)[:160]!a} {_place(error)}"
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()


def _place(error):
    frames = traceback.extract_tb(error.__traceback__)
    ours = [each for each in frames if f"{os.sep}rankscope{os.sep}" in each.filename]
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""


def work(first, calls, step, seed, area):
    """Every ``step``-th call, one line of JSON each; the number of the call comes first."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    import calls as table
    import torch

    torch.set_num_threads(1)
    rows = [row for row in table.ROWS if not area or row.area == area]
    for number in range(first, calls, step):
        print(number, end=" ", flush=True)
        row, arguments, bad = chosen(number, seed, rows)
        ending, where = outcome(row, arguments)
        told = [row.area, row.name, ending] + ([bad, where] if where else [])
        print(json.dumps(told), flush=True)


def lines(options, first):
    """What a worker says, which is started again behind a call that ended it."""
    command = [sys.executable, str(Path(__file__).resolve()), "--calls", str(options.calls)]
    command += ["--seed", options.seed, "--processes", str(options.processes)]
    command += ["--area", options.area]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"HOME": folder, "HF_HUB_OFFLINE": "1", "COLUMNS": "80"}
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
        while first < options.calls:
            worker = subprocess.Popen(
                [*command, "--worker", str(first)],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            number = None
            for line in worker.stdout:
                number, _, rest = line.partition(" ")
                if rest.strip():
                    yield int(number), json.loads(rest)
            if worker.wait() == 0:
                return
            if number is None or worker.returncode == BROKEN:
                raise SystemExit(f"the campaign itself is broken; see {' '.join(worker.args)}")
            if not rest.strip():  # it ended within a call
                yield int(number), ["?", f"call {number}", "hung", {}, f"exit {worker.returncode}"]
            first = int(number) + options.processes


def campaign(options):
    """Run all workers and count."""
    from concurrent.futures import ThreadPoolExecutor

    counts, examples = Counter(), {}

    def collect(first):
        return list(lines(options, first))

    with ThreadPoolExecutor(options.processes) as pool:
        for number, (area, name, ending, *more) in itertools.chain.from_iterable(
            pool.map(collect, range(options.first, options.first + options.processes))
        ):
            counts[area, ending] += 1
            if more:
                key = (name, more[1].rpartition(" ")[2] or more[1][:80], more[1][:40])
                examples.setdefault(key, []).append((number, *more))
    return counts, examples


def main():
    """Print the table by area, and an example of everything that should not be."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--area", default="")
    parser.add_argument("--worker", type=int, default=None)
    options = parser.parse_args()
    if options.worker is not None:
        try:
            work(options.worker, options.calls, options.processes, options.seed, options.area)
        except Exception:
            traceback.print_exc()
            return BROKEN
        return 0
    started = time.perf_counter()
    counts, examples = campaign(options)
    areas = sorted({area for area, _ in counts})
    print(f"{'area':<14}" + "".join(f"{ending:>10}" for ending in ENDINGS))
    for area in areas:
        print(f"{area:<14}" + "".join(f"{counts[area, each]:>10,}" for each in ENDINGS))
    totals = [sum(counts[area, each] for area in areas) for each in ENDINGS]
    print(f"{'all':<14}" + "".join(f"{total:>10,}" for total in totals))
    print(f"{sum(totals):,} calls, seed {options.seed}, {time.perf_counter() - started:.0f} s")
    for (name, *_), found in sorted(examples.items(), key=lambda each: -len(each[1])):
        number, bad, what = found[0]
        print(f"{len(found):>6} × {name}  {bad}  {what}  (call {number})")
    return 1 if totals[2] or totals[3] else 0


if __name__ == "__main__":
    sys.exit(main())
