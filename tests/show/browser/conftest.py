"""One real browser for all tests that look at pages; without one they fail and say so."""

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

expect.set_options(timeout=30_000)  # machines may be shared
TOOL = Path(__file__).parents[3] / "tools" / "browser.py"
ARGUMENTS = [
    "--no-sandbox",  # as root, in a container, Chromium has none to put pages into
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
LOCAL = ("file:", "data:", "blob:", "about:")


def _tool():
    spec = importlib.util.spec_from_file_location("browser_tool", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def browser():
    """Chromium: the system's, or the one that Playwright has downloaded."""
    tool = _tool()
    path = tool.find()
    if path is None:
        pytest.fail(tool.MISSING)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield started
        started.close()


@dataclass
class Visit:
    """A page that is open, what it has written to the console and whom it has asked."""

    page: Page
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def fits(self) -> bool:
        """Whether nothing is wider than the screen."""
        return self.page.evaluate(
            "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        )


@pytest.fixture
def visit(browser: Browser):
    """Open a file at some width, light or dark: ``visit(path, width=390, scheme="dark")``."""
    contexts = []

    def opened(path: Path | str, *, width: int = 1280, scheme: str = "light", **context) -> Visit:
        contexts.append(
            browser.new_context(
                viewport={"width": width, "height": 900}, color_scheme=scheme, **context
            )
        )
        seen = Visit(contexts[-1].new_page())
        seen.page.on("console", lambda message: seen.said.append(f"{message.type}: {message.text}"))
        seen.page.on("pageerror", lambda error: seen.said.append(f"error: {error}"))
        seen.page.on("request", lambda request: seen.asked.append(request.url))
        seen.page.goto(Path(path).resolve().as_uri())
        return seen

    yield opened
    for context in contexts:
        context.close()
