"""What processes of the lab's tests are asked to do."""

import time
from pathlib import Path


def record(log: str, name: str, seconds: float) -> None:
    """Take some time, and leave a line before and after."""
    for word in ("begun", "ended"):
        with Path(log).open("a") as file:
            file.write(f"{name} {word}\n")
        time.sleep(seconds if word == "begun" else 0)
