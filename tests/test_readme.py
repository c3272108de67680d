"""The README's Python runs as it stands."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 4


def test_examples_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for example in EXAMPLES:
        exec(compile(example, str(README), "exec"), names)  # each goes on from the ones before
    assert (tmp_path / "san.html").is_file()
    printed = capsys.readouterr().out
    assert "BERT: relative error of each layer" in printed
    assert "relative_residual" in printed
    assert "Dong et al. 2021" in printed
    assert "radius 4" in printed


def test_bundled_picture_is_there() -> None:
    for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README.read_text()):
        assert (README.parent / path).is_file()
