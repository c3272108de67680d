"""Where the command line starts: from here on, an interruption is one line and no traceback."""

import os
import signal

from rankscope.process.interruption import stop


def main() -> None:
    """Import the commands, which takes a moment, and run the one that was asked for."""
    # OpenMP's threads spin between two operations unless told otherwise, and on a machine with
    # other work that took forty times as long. Set before torch is imported; the user's word wins.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    before = signal.signal(signal.SIGINT, stop)  # nothing is written yet, so nothing can be lost
    from rankscope.cli import main

    signal.signal(signal.SIGINT, before)
    main()


if __name__ == "__main__":
    main()
