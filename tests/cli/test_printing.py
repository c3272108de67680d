"""Lists, errors and the progress bar."""

import io
import sys
from dataclasses import replace

from rankscope.cli import outputs
from rankscope.cli.options import OutputOptions
from rankscope.cli.printing import print_error, print_list
from rankscope.results import Headline, Result
from rankscope.tables import frame


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch, stream: str, columns: int = 40) -> Terminal:
    """A terminal in the place of a standard stream."""
    shown = Terminal()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, stream, shown)
    return shown


LONG = "there is no such thing as /a/path/that/is-longer/than/the/terminal/is/wide; mend it."


def test_errors_are_not_broken_inside_words_in_a_terminal(monkeypatch) -> None:
    shown = terminal(monkeypatch, "stderr")
    print_error(LONG)
    printed = shown.getvalue()
    assert printed.split() == ["rankscope:", *LONG.split()]
    assert len(printed.splitlines()) > 1


def test_elsewhere_errors_are_one_line(capsys) -> None:
    print_error(LONG)
    assert capsys.readouterr().err == f"rankscope: {LONG}\n"


def test_lists_are_broken_beside_the_names(monkeypatch) -> None:
    shown = terminal(monkeypatch, "stdout")
    print_list({"a": "word " * 12, "long": "short"})
    lines = shown.getvalue().splitlines()
    assert lines[0].startswith("a     word")
    assert lines[1].startswith("      word")
    assert lines[-1] == "long  short"


def test_elsewhere_lists_have_a_line_each(capsys) -> None:
    print_list({"a": "word " * 40, "long": "short"})
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_the_bar_says_what_is_being_done(monkeypatch) -> None:
    """Also while charts are drawn, when the experiment itself is over."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    terminal_shown = terminal(monkeypatch, "stderr", 80)
    with outputs.progress() as bars:
        bars.begin("D2")(0.5)
        bars.begin("drawing")(0.25)
    shown = terminal_shown.getvalue()
    for words in ("D2", "50%", "drawing", "25%"):
        assert words in shown


def test_there_is_no_bar_without_a_terminal(capsys) -> None:
    with outputs.progress() as bars:
        bars.begin("D2")(0.5)
    assert capsys.readouterr().err == ""


def test_an_answer_is_printed_before_the_chapters_are_computed(capsys, monkeypatch, tmp_path):
    bars_shown = terminal(monkeypatch, "stderr", 80)
    answer = Result(
        "mine", "A model", "?", ("It is.",), frame({"metric": ["a"], "value": [1.0]}), {}
    )
    answer = replace(answer, headline=Headline("Found"), labels=("where",))
    printed = []

    def compute(bars):
        bars.begin("mine")(0.25)
        yield answer
        printed.append(capsys.readouterr().out)
        bars.begin("chapters")(0.5)
        yield replace(answer, sentences=("It is.", "More."), labels=("where", "why"))

    outputs.publish(compute, OutputOptions(output=tmp_path))
    assert "Found" in printed[0]
    assert "Found" not in capsys.readouterr().out  # once
    assert "chapters" in bars_shown.getvalue()  # the bar is back

    printed.clear()
    outputs.publish(compute, OutputOptions(output=tmp_path, full=True))
    assert printed == [""]  # all details are known at the end alone
    assert "More." in capsys.readouterr().out
