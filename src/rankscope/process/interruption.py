"""Ctrl-C stops a command within two seconds, even during one long computation."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from rankscope.process import files

INTERRUPTED = 130
"""Exit code of an interrupted program."""
_GRACE = 1.5  # seconds for the command to exit by itself and print what is saved
_exit_messages: list[Callable[[], str]] = []


@contextmanager
def prompt_interruption() -> Iterator[None]:
    """In this context, Ctrl-C exits the program if KeyboardInterrupt is not raised soon.

    Python raises KeyboardInterrupt between two bytecode instructions, and a large decomposition is
    a single one. The signal itself arrives at once and wakes a thread, which exits the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    receiving, sending = socket.socketpair()  # Windows cannot make a pipe that does not block
    sending.setblocking(False)
    before = signal.set_wakeup_fd(sending.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_wait, args=(receiving,), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        sending.close()  # this also stops the thread


def _wait(receiving: socket.socket) -> None:
    """Wait for SIGINT, give the command some time, then exit the process."""
    with receiving, suppress(OSError):
        while received := receiving.recv(1):
            if received[0] == signal.SIGINT:
                time.sleep(_GRACE)
                files.discard_unfinished()
                stop()


@contextmanager
def on_forced_exit(message: Callable[[], str]) -> Iterator[None]:
    """In this context, a forced exit prints ``message()``."""
    _exit_messages.append(message)
    try:
        yield
    finally:
        _exit_messages.remove(message)


def stop(_signal: int = signal.SIGINT, _frame: FrameType | None = None) -> None:
    """Exit at once; print the messages of ``on_forced_exit``."""
    lines = [*(message() for message in _exit_messages), "interrupted."]
    os.write(2, "".join(f"rankscope: {line}\n" for line in lines).encode())
    os._exit(INTERRUPTED)
