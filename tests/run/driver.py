"""A sweep as a program of its own, which tests kill, interrupt and start again.

Its one argument is JSON: folder, count, fields of the runs, and the engine with its options.
"""

import json
import resource
import sys

import works

from conftest import make_run
from rankscope import run as sweeping
from rankscope.errors import RankscopeError
from rankscope.process.interruption import INTERRUPTED, prompt_interruption


def main(folder, count, fields, engine, options, most_bytes=None, actions=()):
    if most_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    runs = [make_run(index, **fields) for index in range(count)]
    runs += [make_run(count + at, action=each, **fields) for at, each in enumerate(actions)]
    with prompt_interruption():
        sweeping.drive(
            runs,
            folder,
            engine=getattr(sweeping, engine)(**options),
            work=works.acts,
            on_outcome=lambda outcome, _: print(outcome.run.key, flush=True),
        )


if __name__ == "__main__":
    try:
        main(**json.loads(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except RankscopeError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
