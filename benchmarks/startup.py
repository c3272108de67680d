"""How much processor time do ``import rankscope`` and ``rankscope --help`` take?"""

import subprocess
import sys
from statistics import median

from measuring import Ratio

_STATEMENTS = {
    "import rankscope": ("import rankscope", 0.05),
    "rankscope --help": (
        "import sys; sys.argv = ['rankscope', '--help']; from rankscope.__main__ import main\n"
        "try: main()\nexcept SystemExit: pass",
        0.3,
    ),
}
"""What runs, and the seconds that it may take, those of starting Python not counted."""
_TIMED = """
import sys, time
before = time.process_time()
{}
print(time.process_time() - before, file=sys.stderr)
"""


def main() -> list[Ratio]:
    """The median of five fresh processes."""
    ratios = []
    for name, (code, bar) in _STATEMENTS.items():
        seconds = median(_seconds(code) for _ in range(5))
        print(f"{name}: {seconds * 1e3:.0f} ms")
        ratios.append(Ratio(f"{name} / {bar:g} s of processor time", seconds / bar, 1.0))
    return ratios


def _seconds(code: str) -> float:
    command = [sys.executable, "-c", _TIMED.format(code)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    return float(done.stderr)


if __name__ == "__main__":
    main()
