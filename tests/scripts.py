"""Scripts beside the tests: what Triton's modes hold for is a whole process."""

import os
import subprocess
import sys
from pathlib import Path


def output_of(script: Path) -> str:
    """What a script prints, with the packages that are here and one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", str(script)],
        capture_output=True, text=True, env=environment, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
