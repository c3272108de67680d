"""Documents link to pages and headings that exist, and the glossary names metrics that exist."""

import re
from pathlib import Path

import pytest

from rankscope.metric_catalogue import METRICS

ROOT = Path(__file__).parents[1]
FOLDERS = ("guides", "gallery", "notebooks")
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(path for folder in FOLDERS for path in (ROOT / "docs" / folder).glob("*.md")),
]
GLOSSARY = ROOT / "docs" / "glossary.md"
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)#?([^)\s]*)\)")


def anchors(path):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(path, text):
    for page, anchor in LINK.findall(text):
        target = (path.parent / page).resolve() if page else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield f"{page}#{anchor}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    assert list(broken_links(path, path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("link", ["missing.md", "theory.md#missing", "#missing"])
def test_a_broken_link_is_seen(link):
    assert list(broken_links(GLOSSARY, f"[text]({link})"))


def test_pages_link_to_the_glossary():
    pages = [path for path in DOCUMENTS if path.parent.name not in FOLDERS]  # these link above
    unlinked = [path.name for path in pages if "glossary.md" not in path.read_text("utf-8")]
    assert set(unlinked) <= {"glossary.md", "reproduced.md", "index.md"}  # the latter is generated


def test_metrics_of_the_glossary_exist():
    table = GLOSSARY.read_text(encoding="utf-8").split("## Networks")[0]
    metrics = {
        name
        for line in table.splitlines()
        if line.startswith("|")
        for name in re.findall(r"`([a-z]\w+_\w+)`", line.split("|")[3])
    }
    assert {"relative_residual", "mean_cosine", "stable_rank"} <= metrics
    assert {name.removeprefix("log10_") for name in metrics} - {"token_mask"} <= set(METRICS)
