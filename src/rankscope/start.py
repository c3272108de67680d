"""Where the command line starts: from here on, an interruption is one line and no traceback."""

import os
import signal
from types import FrameType

INTERRUPTED = 130
"""The exit code of a program that was interrupted."""


def stop(_signal: int = signal.SIGINT, _frame: FrameType | None = None) -> None:
    """End at once. Nothing is written yet while modules are being imported."""
    os.write(2, b"rankscope: interrupted.\n")
    os._exit(INTERRUPTED)


def main() -> None:
    """Import the commands, which takes a moment, and run the one that was asked for."""
    before = signal.signal(signal.SIGINT, stop)
    from rankscope.cli import main

    signal.signal(signal.SIGINT, before)
    main()
