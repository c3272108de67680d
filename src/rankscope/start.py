"""Where the command line starts: from here on, an interruption is one line and no traceback."""

import signal

from rankscope.interruption import stop


def main() -> None:
    """Import the commands, which takes a moment, and run the one that was asked for."""
    before = signal.signal(signal.SIGINT, stop)  # nothing is written yet, so nothing can be lost
    from rankscope.cli import main

    signal.signal(signal.SIGINT, before)
    main()
