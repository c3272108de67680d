"""What README, guides and notebooks show runs as it stands, and prints what they say."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from rankscope.cli import app

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
SCREEN = 55
"""Lines of the README at the most."""
PRINTED = {
    "README.md": "relative_residual",
    "docs/index.md": "relative_residual",
    "docs/guide.md": "Dong et al. 2021",
    "docs/diagnose.md": "No collapse",
    "docs/monitor.md": "() {'rank/residual/L00': 0.9",
    "docs/sweeps.md": "6 runs: 6 done",
    "docs/guides/collapsing.md": "The cause is the norm of layer 3",
    "docs/guides/design.md": "The best change",
    "docs/guides/train.md": "Monitor of TransformerEncoder at step 20: no alarm",
    "docs/guides/checkpoints.md": "before keeps its tokens apart best",
    "docs/guides/embeddings.md": "collapse cosine 0.95, rank without the mean 2.0 of 32",
    "docs/guides/long-context.md": "radius 32",
    "docs/guides/cluster.md": "12 runs: 12 done",
    "docs/guides/teach.md": "Supported with an erratum",
}
"""Of every page with Python, something that its code prints."""
SHOWN = {
    "diagnose": "Depth collapse, layer 4 (norm)",
    "design": "The best change",
    "checkpoints": "",
    "embeddings": "common direction    0.94  26.9  58.2",
    "two-tokens": "radius 3",
}
"""Of every notebook, something that it prints."""


def examples(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text("utf-8"), flags=re.DOTALL)


def test_every_guide_is_run() -> None:
    pages = [README, *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md")]
    with_code = {str(page.relative_to(ROOT)) for page in pages if examples(page)}
    others = {"docs/api.md", "docs/families.md"}  # run by tests of their own
    assert with_code - others == set(PRINTED)
    notebooks = {path.stem for path in (ROOT / "docs" / "notebooks").glob("*.ipynb")}
    assert notebooks == set(SHOWN)


@pytest.mark.parametrize("name", PRINTED)
def test_examples_run(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for example in examples(ROOT / name):
        exec(compile(example, name, "exec"), names)  # each goes on from the ones before
    assert PRINTED[name] in capsys.readouterr().out


@pytest.mark.parametrize("name", SHOWN)
def test_notebooks_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs" / "_ext"), str(ROOT / "tools"), *sys.path])
    import site_notebooks

    cells = site_notebooks.run(ROOT / "docs" / "notebooks" / f"{name}.ipynb")
    assert SHOWN[name] in "".join(cell.printed for cell in cells)
    assert any(cell.shown.startswith("<svg") for cell in cells) or name == "embeddings"


def test_notebooks_have_no_outputs() -> None:
    for path in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        assert '"outputs": []' in path.read_text("utf-8")
        assert '"output_type"' not in path.read_text("utf-8")


def unknown_words(line: str) -> list[str]:
    """Commands and options of a line for the shell that rankscope does not have."""
    import typer

    words = shlex.split(line, comments=True)[1:]
    commands = typer.main.get_command(app).commands
    if words[0] not in commands:
        return [words[0]]
    command = commands[words[0]]
    inner = getattr(command, "commands", {})
    command = inner.get(words[1], inner.get("run")) if inner else command
    known = {opt for param in command.params for opt in (*param.opts, *param.secondary_opts)}
    return [word for word in words if word.startswith("--") and word.split("=")[0] not in known]


def test_commands_on_pages_exist() -> None:
    lines = [
        line
        for page in [README, *(ROOT / "docs").rglob("*.md")]
        if "generated" not in page.parts
        for block in re.findall(r"```sh\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("rankscope ")
    ]
    lines += [
        code
        for page in (ROOT / "docs" / "gallery").glob("*.md")
        for code in re.findall(r"`(rankscope \w+ --[^`]+)`", page.read_text("utf-8"))
    ]
    assert len(lines) >= 30
    assert {line: unknown for line in lines if (unknown := unknown_words(line))} == {}
    assert unknown_words("rankscope diagnos x") == ["diagnos"]
    assert unknown_words("rankscope diagnose x --fail") == ["--fail"]


def test_the_readme_is_one_screen() -> None:
    assert len(README.read_text("utf-8").splitlines()) <= SCREEN


def test_bundled_picture_is_there() -> None:
    for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README.read_text("utf-8")):
        assert (README.parent / path).is_file()
