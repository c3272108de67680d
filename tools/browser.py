"""Find a Chromium for the tests that look at pages, or install one: ``make test`` runs it first.

It uses a browser of the system if there is one; otherwise apt-get installs it (as root on Debian
and its derivatives), or Playwright downloads its own. Needs only Playwright.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MISSING = (
    "no Chromium was found: the tests of pages need one. Install it (apt-get install chromium), or "
    "run: python -m playwright install chromium"
)


def on_the_system() -> str | None:
    """A browser on the path."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def of_playwright() -> str | None:
    """The browser that Playwright has downloaded, if any."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).is_file() else None


def find() -> str | None:
    """The browser that the tests use; the system's own comes first."""
    return on_the_system() or of_playwright()


def install() -> str | None:
    """Install a browser with the first command that works."""
    ways = [[sys.executable, "-m", "playwright", "install", "chromium"]]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        ways.insert(0, ["apt-get", "install", "-y", "--no-install-recommends", "chromium"])
        subprocess.run(["apt-get", "update"], check=False)
    for way in ways:
        print("installing a browser for the tests:", " ".join(way), flush=True)
        subprocess.run(way, check=False)
        path = find()
        if path:
            return path
    return None


def main() -> None:
    """Install a browser if there is none; exit with an error if that fails."""
    path = find() or install()
    sys.exit(MISSING if path is None else None)


if __name__ == "__main__":
    main()
