"""Where the command line starts: from here on, an interruption is one line and no traceback."""

import gc
import os
import signal
import sys

from rankscope.errors import MissingPackageError
from rankscope.process import keep_freed_memory, passive_wait, stop


def main() -> None:
    """Import the commands, which is slow, and run the requested one."""
    os.environ.update(passive_wait())  # before torch is imported
    keep_freed_memory()
    # Python looks for garbage after 700 new objects by default, and imports make half a million.
    gc.set_threshold(10_000)
    before = signal.signal(signal.SIGINT, stop)  # nothing is written yet, so nothing can be lost
    try:
        from rankscope.cli import main
    except MissingPackageError as error:
        print(f"rankscope: {error}", *error.__notes__, sep="\n  ", file=sys.stderr)
        sys.exit(error.exit_code)

    signal.signal(signal.SIGINT, before)
    main()


if __name__ == "__main__":
    main()
