"""Ctrl-C ends a command within two seconds, also inside one long computation."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from rankscope.process import files

INTERRUPTED = 130
"""The exit code of a program that was interrupted."""
_PATIENCE = 1.5  # seconds for the command to end by itself and say what is kept
_last_words: list[Callable[[], str]] = []


@contextmanager
def prompt_interruption() -> Iterator[None]:
    """While this lasts, an interruption that is not heeded soon ends the program.

    Python raises KeyboardInterrupt between two of its own instructions, and a large decomposition
    is a single one. The signal itself arrives at once, though, and wakes a thread of ours.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    receiving, sending = os.pipe()
    os.set_blocking(sending, False)
    before = signal.set_wakeup_fd(sending, warn_on_full_buffer=False)
    threading.Thread(target=_wait, args=(receiving,), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(sending)  # which also ends the thread


def _wait(receiving: int) -> None:
    """Wait for an interruption, give the command some time, then end it."""
    with suppress(OSError):
        while received := os.read(receiving, 1):
            if received[0] == signal.SIGINT:
                time.sleep(_PATIENCE)
                files.discard_unfinished()
                stop()
    os.close(receiving)


@contextmanager
def last_words(words: Callable[[], str]) -> Iterator[None]:
    """While this lasts, what is said if the program has to be ended before it could say it."""
    _last_words.append(words)
    try:
        yield
    finally:
        _last_words.remove(words)


def stop(_signal: int = signal.SIGINT, _frame: FrameType | None = None) -> None:
    """End at once, with one line, and what there is to say before it."""
    lines = [*(words() for words in _last_words), "interrupted."]
    os.write(2, "".join(f"rankscope: {line}\n" for line in lines).encode())
    os._exit(INTERRUPTED)
