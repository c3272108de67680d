"""The page and what it loads: made once, kept packed, told apart by digests."""

import gzip
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from string import Template
from threading import Lock
from typing import Any

from rankscope.show.figures import bundle, dark_variables
from rankscope.show.lab._charts import TITLES, charts
from rankscope.show.lab._presets import PRESETS
from rankscope.show.lab._state import PARAMETERS
from rankscope.version import __version__


@dataclass(frozen=True)
class Part:
    """One file: plain, packed, its kind, and a digest of it."""

    kind: str
    plain: bytes
    packed: bytes
    etag: str

    @classmethod
    def of(cls, kind: str, text: str) -> "Part":
        plain = text.encode()
        digest = hashlib.sha256(plain).hexdigest()[:24]
        return cls(kind, plain, gzip.compress(plain, 6, mtime=0), f'"{digest}"')


class Files:
    """Every file of the page by its path; each is made when first asked for, or by ``make``."""

    def __init__(self) -> None:
        self._made: dict[str, Part] = {}
        self._locks = {path: Lock() for path in _MAKERS}

    @property
    def paths(self) -> tuple[str, ...]:
        """Where the files are."""
        return tuple(_MAKERS)

    def get(self, path: str) -> Part:
        """One file; two that ask at once wait for one making."""
        with self._locks[path]:
            if path not in self._made:
                kind, make = _MAKERS[path]
                self._made[path] = Part.of(kind, make())
            return self._made[path]

    def make(self) -> None:
        """All files, the slowest (Vega's) first."""
        for path in reversed(self.paths):
            self.get(path)


def description() -> dict[str, Any]:
    """What the page is made of: parameters with their limits, presets, charts."""
    return {
        "version": __version__,
        "parameters": {name: each.describe() for name, each in PARAMETERS.items()},
        "presets": [preset.describe() for preset in PRESETS],
        "titles": TITLES,
        "charts": charts(),
    }


def _text(name: str) -> str:
    return (files("rankscope.show.lab") / name).read_text("utf-8")


def _style() -> str:
    return Template(_text("lab.css")).substitute(chart_colours=dark_variables())


_MAKERS: dict[str, tuple[str, Callable[[], str]]] = {
    "/": ("text/html", lambda: _text("page.html")),
    "/lab.css": ("text/css", _style),
    "/lab.js": ("text/javascript", lambda: _text("lab.js")),
    "/mask.js": ("text/javascript", lambda: _text("mask.js")),
    "/controls.js": ("text/javascript", lambda: _text("controls.js")),
    "/charts.js": ("text/javascript", lambda: _text("charts.js")),
    "/icon.svg": ("image/svg+xml", lambda: _text("icon.svg")),
    "/lab.json": (
        "application/json",
        lambda: json.dumps(description(), ensure_ascii=False, separators=(",", ":")),
    ),
    "/vega.js": ("text/javascript", bundle),
}
