"""The Sphinx extension of the site: writes the pages that are generated, and draws figures.

Everything goes into ``docs/generated``, which git ignores. What takes long (figures, a diagnosis,
the outputs of notebooks) is kept there until the source changes. With ``-D site_small=1`` it is
left out: tests then look at all pages in seconds.
"""

import html
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import draw_figures
import rankscope
import site_catalogues
import site_notebooks
import site_reference
from rankscope.numerals import cut

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
GENERATED = DOCS / "generated"
CACHE = GENERATED / "cache"
DOCUMENTS = {
    "benchmarks": "benchmarks/README.md",
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
}
"""Documents outside docs/ that are pages of the site."""


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect what writes pages, the directive of charts, and what follows a build."""
    app.add_config_value("site_small", False, "env", bool)
    app.add_directive("chart", Chart)
    app.add_directive("page-of", PageOf)
    app.connect("builder-inited", write_pages)
    app.connect("source-read", link_documents)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write_pages(app: Sphinx) -> None:
    """Write every generated page; files that would not change are left alone."""
    notebooks = site_notebooks.pages(DOCS, None if app.config.site_small else kept)
    pages = {
        "commands": site_catalogues.commands(),
        "metrics": site_catalogues.metrics(),
        **site_catalogues.described(),
        **{f"claims/{name}": text for name, text in site_catalogues.claims().items()},
        **{f"reference/{name}": text for name, text in site_reference.pages().items()},
        **{f"notebooks/{name}": text for name, text in notebooks.items()},
        **{name: outside(path) for name, path in DOCUMENTS.items()},
    }
    for name, text in pages.items():
        update(GENERATED / f"{name}.md", text)
    update(GENERATED / "models.inc", site_catalogues.model_table())
    update(GENERATED / "verdicts.inc", site_catalogues.verdict_table())
    update(DOCS / "_static" / "figures.css", draw_figures.style())


def update(path: Path, text: str) -> None:
    """Write a file unless it holds this text, so that Sphinx reads only what is new."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def kept(name: str, make: Callable[[Path], None], *sources: Path) -> Path:
    """A file that takes long to make: that of the last build if no source is newer."""
    path = CACHE / name
    code = [*Path(rankscope.__file__).parent.rglob("*.py"), Path(draw_figures.__file__), *sources]
    if not path.is_file() or path.stat().st_mtime < max(of.stat().st_mtime for of in code):
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path)
    return path


def outside(name: str) -> str:
    """A document of the repository as a page; its links lead to the pages of the site."""
    text = (ROOT / name).read_text(encoding="utf-8")
    text = re.sub(r"\]\((?:\.\./)?docs/([^)]*)\)", r"](../\1)", text)
    for page, path in DOCUMENTS.items():
        text = text.replace(f"]({path})", f"]({page}.md)")
    return text


def link_documents(_: Sphinx, docname: str, source: list[str]) -> None:
    """Links to documents outside docs/, and to sections with pages of their own, lead there.

    A link whose text is the name of a file, as is usual on GitHub, shows the title of the page.
    """
    up = "../" * docname.count("/")
    for page, path in DOCUMENTS.items():
        target = f"]({up}generated/{page}.md"
        source[0] = source[0].replace(f"]({up}../{path}", target)
    if docname in site_catalogues.PAGED:
        source[0] = site_catalogues.without_sections(docname, source[0])
    source[0] = site_catalogues.link_sections(docname, source[0])
    source[0] = re.sub(r"\[[\w/.-]+\.md\](?=\([^)]+\.md[)#])", "[]", source[0])


class Chart(SphinxDirective):
    """A figure of ``tools/draw_figures.py`` by its name, or an SVG of docs/, in the page itself.

    Its colours are those of the page, light or dark. The content is the caption.
    """

    required_arguments = 1
    has_content = True
    option_spec: ClassVar = {"alt": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """The figure as HTML."""
        name = self.arguments[0]
        if name not in draw_figures.FIGURES and not (DOCS / name).is_file():
            raise self.error(f"there is no figure {name!r} in tools/draw_figures.py.")
        drawn = draw_figures.inline(self._drawn(name), self.options["alt"])
        held = f'<div class="drawing" tabindex="0">{drawn}</div>'  # keys scroll it on a phone
        figure = nodes.container("", nodes.raw("", held, format="html"), classes=["chart"])
        if self.content:
            caption = nodes.container("", classes=["caption"])
            self.state.nested_parse(self.content, self.content_offset, caption)
            figure += caption
        return [figure]

    def _drawn(self, name: str) -> str:
        if name in draw_figures.FIGURES and self.config.site_small:
            return '<svg width="620" height="300"><text fill="#3a4656" y="20">Figure</text></svg>'
        path = DOCS / name
        if name in draw_figures.FIGURES:
            path = kept(f"{name}.svg", lambda path: draw_figures.draw(name, path))
        self.env.note_dependency(str(path))
        return path.read_text(encoding="utf-8")


class PageOf(SphinxDirective):
    """A self-contained page of the tool, live inside this one: ``{page-of} diagnosis``."""

    required_arguments = 1
    option_spec: ClassVar = {
        "title": directives.unchanged_required,
        "height": directives.nonnegative_int,
    }

    def run(self) -> list[nodes.Node]:
        """A frame, and a link to the page on its own."""
        name = self.arguments[0]
        if self.config.site_small:
            update(CACHE / f"{name}.html", "<!DOCTYPE html><title>Page</title><p>Page</p>")
        else:
            kept(f"{name}.html", lambda path: draw_figures.draw(name, path))
        address = "../" * self.env.docname.count("/") + f"live/{name}.html"
        title, height = html.escape(self.options["title"]), self.options.get("height", 560)
        frame = (
            f'<div class="live"><iframe src="{address}" title="{title}" loading="lazy" '
            f'style="height:{height}px"></iframe>'
            f'<p><a href="{address}">Open this page on its own</a></p></div>'
        )
        return [nodes.raw("", frame, format="html")]


def finish(app: Sphinx, error: Exception | None) -> None:
    """Copy live pages, and write ``llms.txt``."""
    if error is not None or app.builder.format != "html":
        return
    live = Path(app.outdir) / "live"
    live.mkdir(exist_ok=True)
    for page in CACHE.glob("*.html"):
        (live / page.name).write_bytes(page.read_bytes())
    (Path(app.outdir) / "llms.txt").write_text(llms(app), encoding="utf-8")


def about(app: Sphinx, docname: str) -> str:
    """What a page begins with, as the note of its line."""
    tree = app.env.get_and_resolve_doctree(docname, app.builder)  # links have their words
    words = next(tree.findall(nodes.paragraph), None)
    return "" if words is None else f": {cut(' '.join(words.astext().split()), 160)}"


def llms(app: Sphinx) -> str:
    """The pages of the site in the form of llmstxt.org: what each is about, with its address."""
    summary = import_module("rankscope").__doc__ or ""
    lines = ["# rankscope", "", f"> {summary.splitlines()[0]}", ""]
    sections: dict[str, list[str]] = {}
    for docname in sorted(app.env.found_docs):
        title = app.env.titles[docname].astext()
        folder = docname.removeprefix("generated/").rpartition("/")[0] or "pages"
        address = app.builder.get_target_uri(docname)
        sections.setdefault(folder, []).append(f"- [{title}]({address}){about(app, docname)}")
    for folder, pages in sections.items():
        lines += [f"## {folder.capitalize()}", "", *pages, ""]
    return "\n".join(lines)
