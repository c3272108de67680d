"""How long until ``rankscope --help`` answers?"""

import subprocess
import sys

from measuring import Ratio, interleaved

HALF_A_SECOND = 0.5


def main() -> list[Ratio]:
    """A fresh process each time."""
    command = [sys.executable, "-m", "rankscope", "--help"]
    run = {"help": lambda: subprocess.run(command, capture_output=True, check=True)}
    seconds = interleaved(run, rounds=5)["help"]
    print(f"rankscope --help: {seconds * 1e3:.0f} ms")
    return [Ratio("rankscope --help / half a second", seconds / HALF_A_SECOND, 1.0)]


if __name__ == "__main__":
    main()
