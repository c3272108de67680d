"""The worked example of docs/families.md runs as it stands."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "families.md"


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    exec(compile(example, str(PAGE), "exec"), {})
    fits, spec, adds_up = capsys.readouterr().out.splitlines()
    assert (fits, adds_up) == ("True", "True")
    assert spec.startswith("3 layers, width 32, 4 heads of width 8, causal mask")
