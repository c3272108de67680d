"""Where the command line starts: from here on, an interruption is one line and no traceback."""

import os
import signal
import sys

from rankscope.errors import MissingPackageError
from rankscope.process import passive_wait, stop


def main() -> None:
    """Import the commands, which is slow, and run the requested one."""
    os.environ.update(passive_wait())  # before torch is imported
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
