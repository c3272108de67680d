"""The examples of the monitor, in small form: the story that each of them tells."""

import importlib.util
import runpy
import sys
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parents[2] / "examples" / "monitor"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rules(monitor) -> set[str]:
    return {alarm.rule for alarm in monitor.alarms}


def test_every_example_is_tested_and_says_how_to_run_it():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    tests = Path(__file__).read_text(encoding="utf-8")
    assert names == {name for name in names if f'load("{name}")' in tests}
    for name in names:
        assert f"python examples/monitor/{name}.py" in load(name).__doc__


def test_fine_tuning_with_a_trainer(tmp_path, capsys):
    monitor = load("fine_tune_with_trainer").main(4, str(tmp_path), every=2)
    assert [record.step for record in monitor.history.records] == [0, 2, 4]
    assert monitor.history.last.get("grad/qk_over_v", 1) > 0
    assert monitor.alarms == ()
    said = capsys.readouterr().out
    assert "The trainer's log has 3 records of the monitor" in said
    assert "no alarm" in said


def test_a_skipless_network_collapses_and_two_changes_save_it(tmp_path, capsys):
    monitors = load("skipless_network").main(120, str(tmp_path), every=20)
    skipless, *saved = monitors.values()
    assert rules(skipless) == {"collapsed-init"}
    assert skipless.alarms[0].step == 0
    assert skipless.history.last.get("rank/residual", 10) < 1e-5
    assert [rules(monitor) for monitor in saved] == [set(), set()]
    assert all(monitor.history.last.get("rank/residual", 10) > 0.1 for monitor in saved)
    losses = [monitor.history.last.get("loss") for monitor in monitors.values()]
    assert max(losses[1:]) < losses[0] - 0.1
    assert "collapsed-init: layer 3: relative residual" in capsys.readouterr().out


def test_a_self_supervised_model_collapses_while_its_loss_falls(tmp_path, capsys):
    alone, kept_apart = load("self_supervised_collapse").main(80, str(tmp_path)).values()
    assert rules(alone) == {"rank-falls-with-loss", "embedding-cone"}
    assert alone.history.last.get("loss") < 0.05 * alone.history.first("loss")
    assert alone.history.last.get("pooled/effective_rank") < 2.5
    assert rules(kept_apart) == set()
    assert kept_apart.history.last.get("pooled/effective_rank") > 5
    assert "the loss fell from" in capsys.readouterr().out


def test_an_example_runs_from_the_command_line(tmp_path, monkeypatch, capsys):
    path = EXAMPLES / "self_supervised_collapse.py"
    monkeypatch.setattr(sys, "argv", [str(path), "--steps", "5"])
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.count("rank of 16 embeddings") == 2
    assert not list(tmp_path.iterdir())
