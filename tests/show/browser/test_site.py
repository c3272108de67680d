"""The site as it is built: its links, texts for pictures, contrast, a phone, the keyboard, search.

Built once for all tests, without what takes long (``site_small``). ``make docs-check`` runs the
same tests on the whole site, which RANKSCOPE_SITE then names.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import rankscope
from rankscope import version
from rankscope.cli import app
from rankscope.errors import RankscopeError
from rankscope.experiments.catalogue import entries
from rankscope.experiments.diagnosis import RULES
from rankscope.metric_catalogue import METRICS
from rankscope.monitor import RULES as ALARMS

from .conftest import LOCAL

ROOT = Path(__file__).parents[3]
PARTS = ("docs", "tools", "benchmarks", "CHANGELOG.md", "CONTRIBUTING.md")
SEEN = [
    "index",
    "pictures",
    "guides/collapsing",
    "gallery/gemma4-init",
    "generated/metrics",
    "generated/claims/d4",
    "generated/alarms/rank-collapse",
    "generated/rules/depth-collapse",
    "generated/errors/shapeerror",
    "generated/commands",
    "generated/reference/rankscope",
    "generated/notebooks/two-tokens",
    "reproduced",
]
"""Pages that are looked at in a browser: one of each kind."""
PHONE, DESK = 360, 1200
BUILD_LIMIT = 180
"""Seconds that a build may take."""
CONTRAST = """() => {
  const parse = (text) => {
    const parts = text.match(/[\\d.]+/g).map(Number);
    return { rgb: parts.slice(0, 3), alpha: parts.length > 3 ? parts[3] : 1 };
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((value) => {
      const part = value / 255;
      return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const { rgb, alpha } = parse(getComputedStyle(at).backgroundColor);
      if (alpha > 0.5) return rgb;
    }
    return [255, 255, 255];
  };
  const weak = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || element.closest("svg, script, style")) continue;
    const style = getComputedStyle(element);
    const box = element.getBoundingClientRect();
    if (style.visibility !== "visible" || !box.width || !box.height) continue;
    const [a, b] = [luminance(parse(style.color).rgb), luminance(paper(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5))
      weak.add(`${element.textContent.trim().slice(0, 30)}, contrast ${ratio.toFixed(2)}`);
  }
  return [...weak];
}"""


@dataclass
class Page(HTMLParser):
    """Anchors, links, what is loaded, and pictures without a text, of one file."""

    anchors: set[str] = field(default_factory=set)
    links: set[str] = field(default_factory=set)
    loaded: set[str] = field(default_factory=set)
    silent: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.add(given["href"])
        elif tag in ("script", "img", "iframe", "source", "link"):
            address = given.get("src") or given.get("href")
            if address:
                self.loaded.add(address)
        if tag == "img" and not given.get("alt", "").strip():
            self.silent.append(f"img {given.get('src')}")
        if tag == "iframe" and not given.get("title", "").strip():
            self.silent.append(f"iframe {given.get('src')}")
        if tag == "svg" and given.get("role") == "img" and not given.get("aria-label", "").strip():
            self.silent.append("svg")


@pytest.fixture(scope="session")
def site(tmp_path_factory, request) -> Path:
    """The folder of the built site; of several workers, the first builds it."""
    if os.environ.get("RANKSCOPE_SITE"):
        return Path(os.environ["RANKSCOPE_SITE"]).resolve()
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if hasattr(request.config, "workerinput") else base) / "site"
    done = shared / "done"
    try:
        shared.mkdir()
    except FileExistsError:
        deadline = time.monotonic() + BUILD_LIMIT
        while not done.is_file():
            assert time.monotonic() < deadline, "another worker did not build the site"
            time.sleep(0.5)
    else:
        done.write_text(build(shared))
    assert done.read_text() == "", done.read_text()
    return shared / "html"


def build(folder: Path) -> str:
    """Build a copy of the sources, warnings as errors; what went wrong, or nothing."""
    for part in PARTS:
        if (ROOT / part).is_dir():
            ignored = shutil.ignore_patterns("_build", "generated", "__pycache__")
            shutil.copytree(ROOT / part, folder / part, ignore=ignored)
        else:
            shutil.copy(ROOT / part, folder / part)
    run = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-D", "site_small=1",
         str(folder / "docs"), str(folder / "html")],
        capture_output=True, text=True, check=False, timeout=BUILD_LIMIT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    return "" if run.returncode == 0 else run.stderr[-3000:] or "the build failed"


@pytest.fixture(scope="session")
def pages(site) -> dict[Path, Page]:
    """Every page, read."""
    read = {}
    for path in site.rglob("*.html"):
        if "live" in path.relative_to(site).parts:
            continue  # pages of the product have tests of their own
        read[path] = Page()
        read[path].feed(path.read_text(encoding="utf-8"))
    return read


def broken_links(pages: dict[Path, Page]) -> list[str]:
    """Links to files or anchors that are not there."""
    anchors = {path: page.anchors for path, page in pages.items()}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            known = anchors.get(target, {anchor})  # files that are not pages have no anchors
            if not target.is_file() or (anchor and anchor not in known):
                broken.append(f"{path.name}: {link}")
    return broken


def test_no_link_is_broken(pages):
    assert len(pages) > 80
    assert sum(len(page.links) for page in pages.values()) > 1000
    assert broken_links(pages) == []


def test_a_broken_link_is_seen(tmp_path):
    page = Page()
    page.feed('<p id="a"><a href="#a">x</a><a href="#b">y</a><a href="gone.html">z</a></p>')
    (tmp_path / "one.html").touch()
    assert sorted(broken_links({tmp_path / "one.html": page})) == [
        "one.html: #b",
        "one.html: gone.html",
    ]


def test_links_have_titles_and_not_names_of_files(pages):
    """In the sources, which are read on GitHub, a link to a document has the name of its file."""
    named = re.compile(r'<span class="std std-(?:doc|ref)">[^<]*\.md</span>')
    assert [path.name for path in pages if named.search(path.read_text("utf-8"))] == []


def test_nothing_is_loaded_from_outside(pages, site):
    outside = {
        address
        for page in pages.values()
        for address in page.loaded
        if urlsplit(address).scheme not in ("", "data") or address.startswith("//")
    }
    assert outside == set()
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text(encoding="utf-8"))


def test_every_picture_has_a_text(pages):
    assert {path.name: page.silent for path, page in pages.items() if page.silent} == {}


def anchors_of(pages, site, name):
    return pages[site / f"{name}.html"].anchors


def slug(words: str) -> str:
    return re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-").replace("_", "-")


def test_everything_that_can_be_named_has_an_anchor(pages, site):
    generated = "generated"
    names = {
        f"{generated}/reference/rankscope": {
            name for name in rankscope.__all__ if not name.startswith("__")
            and type(getattr(rankscope, name)).__name__ != "module"
        },
        f"{generated}/metrics": {name for name, metric in METRICS.items() if metric.compute},
        f"{generated}/commands": {
            command.name or command.callback.__name__ for command in app.registered_commands
        },
    }  # fmt: skip
    for page, listed in names.items():
        assert len(listed) > 5, page
        wanted = {slug(name) for name in listed}
        assert wanted - {slug(anchor) for anchor in anchors_of(pages, site, page)} == set(), page


def test_what_messages_link_to_has_a_page(pages, site, monkeypatch):
    """The address in a message is made by ``documentation``, for a site that is published."""
    monkeypatch.setattr(version, "_site", lambda: str(site))
    kinds = {
        kind.__name__ for kind in every_kind(RankscopeError)
        if kind.__module__ == RankscopeError.__module__  # the lab has one for itself
    }  # fmt: skip
    listed = {"errors": kinds, "alarms": set(ALARMS), "rules": {rule.name for rule in RULES}}
    for page, names in listed.items():
        assert len(names) > 10
        for name in names:
            path = Path(version.documentation(page, name))
            assert path in pages, path
            assert len(path.read_text("utf-8").split("What to do")) > 1
    for claim in entries("claim"):
        assert (site / "generated" / "claims" / f"{claim.lower()}.html").is_file()


def every_kind(kind: type) -> set[type]:
    return {kind}.union(*(every_kind(inner) for inner in kind.__subclasses__()))


def test_the_list_for_language_models_leads_somewhere(site):
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# rankscope\n\n> ")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) == len(set(links)) > 80
    assert [link for link in links if not (site / link).is_file()] == []
    lines = [line for line in text.splitlines() if line.startswith("- ")]
    assert sum(re.search(r"\.html\): \w.{10,}", line) is not None for line in lines) > 80
    assert " in ," not in text  # a link without words


@pytest.mark.parametrize(("width", "scheme"), [(PHONE, "light"), (DESK, "dark")])
@pytest.mark.parametrize("name", SEEN)
def test_pages_fit_and_can_be_read(site, visit, name, width, scheme):
    seen = visit(site / f"{name}.html", width=width, scheme=scheme)
    assert seen.fits()
    assert seen.page.evaluate(CONTRAST) == []
    assert seen.said == []
    assert [url for url in seen.asked if not url.startswith(LOCAL)] == []


def test_weak_contrast_is_seen(visit, tmp_path):
    (tmp_path / "weak.html").write_text("<p style='color:#999'>weak</p><p>strong</p>")
    assert len(visit(tmp_path / "weak.html").page.evaluate(CONTRAST)) == 1


def test_keys_reach_the_content(site, visit):
    page = visit(site / "index.html").page
    page.keyboard.press("Tab")
    assert "Skip to content" in page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Enter")
    assert page.url.endswith("#furo-main-content")


def test_search_works_offline(site, visit):
    seen = visit(site / "search.html")
    seen.page.fill("form[action] input[name=q] >> nth=0", "dobrushin")
    seen.page.keyboard.press("Enter")
    seen.page.wait_for_selector("ul.search li a")
    assert seen.page.locator("ul.search li").count() > 3


def test_the_theme_can_be_switched_and_figures_follow(site, visit):
    page = visit(site / "pictures.html", scheme="light").page
    colour = "() => getComputedStyle(document.querySelector('.chart svg text')).fill"
    light = page.evaluate(colour)
    page.locator(".theme-toggle-header, .theme-toggle").locator("visible=true").first.click()
    page.wait_for_function("document.body.dataset.theme !== 'auto'")
    page.evaluate("document.body.dataset.theme = 'dark'")
    assert page.evaluate(colour) != light


def test_print_leaves_navigation_out(site, visit):
    page = visit(site / "pictures.html").page
    page.emulate_media(media="print")
    assert not page.locator(".sidebar-drawer").is_visible()
    assert page.locator(".chart svg").first.is_visible()
