"""Notebooks as pages: run without a kernel, and their cells with what they print and show.

``run`` is also what tests use. A notebook is JSON; its cells are Python that runs in one namespace,
and the value of a last expression is shown as Jupyter would show it.
"""

import ast
import contextlib
import html
import io
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import draw_figures

Keep = Callable[..., Path]


@dataclass(frozen=True)
class Cell:
    """A cell: its text, and for code what it printed and the last value as HTML."""

    kind: str
    source: str
    printed: str = ""
    shown: str = ""


def read(path: Path) -> list[Cell]:
    """The cells of a notebook as they are written."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [Cell(cell["cell_type"], "".join(cell["source"])) for cell in cells]


def run(path: Path) -> list[Cell]:
    """Run a notebook from top to bottom, in a folder of its own."""
    cells = read(path)
    names: dict[str, Any] = {"__name__": "__main__"}
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return [_run(cell.kind, cell.source, names) for cell in cells]
        finally:
            os.chdir(before)


def _run(kind: str, source: str, names: dict[str, Any]) -> Cell:
    if kind != "code":
        return Cell(kind, source)
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "<cell>", "exec"), names)
        value = None
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    shown = "" if value is None else display(value)
    return Cell(kind, source, printed.getvalue(), shown)


def display(value: Any) -> str:
    """A value as HTML: its picture, its HTML or its text."""
    if hasattr(value, "_repr_mimebundle_"):
        drawn = value._repr_mimebundle_().get("image/svg+xml")
        if drawn:
            return draw_figures.inline(drawn, "Chart drawn by the code above")
    if hasattr(value, "_repr_html_"):
        return str(value._repr_html_())
    return f"<pre>{html.escape(repr(value))}</pre>"


def pages(docs: Path, kept: Keep | None) -> dict[str, str]:
    """Every notebook as a page, by its name; run if there is a place where outputs are kept."""
    folder = docs / "notebooks"
    written = {}
    for path in sorted(folder.glob("*.ipynb")):
        if kept is None:
            written[path.stem] = _page(path, read(path))
            continue
        page = kept(
            f"{path.stem}.md", lambda to, path=path: to.write_text(_page(path, run(path))), path
        )
        written[path.stem] = page.read_text(encoding="utf-8")
    return written


def _page(path: Path, cells: list[Cell]) -> str:
    parts = []
    for cell in cells:
        if cell.kind == "markdown":
            parts.append(cell.source.replace("](../", "](../../"))
            continue
        parts.append(f"```python\n{cell.source}\n```")
        if cell.printed:
            parts.append(f"```{{code-block}} text\n:class: printed\n\n{cell.printed.rstrip()}\n```")
        if cell.shown:
            parts.append(f'```{{raw}} html\n<div class="shown">{cell.shown}</div>\n```')
    title, *rest = parts
    note = f"*A notebook: `docs/notebooks/{path.name}`, run when this site was built.*"
    return "\n\n".join([title, note, *rest]) + "\n"
