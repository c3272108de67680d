"""The example of docs/monitor.md runs as it stands."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "monitor.md"


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # it writes to the default folder
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(example, str(PAGE), "exec"), {})
    assert capsys.readouterr().out.startswith("() {'rank/residual/L00': ")
    assert (tmp_path / "rankscope-output" / "monitor-0001" / "monitor.parquet").is_file()
