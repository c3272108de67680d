"""Lists, errors and the progress bar."""

import io
import sys

from rankscope.cli import outputs
from rankscope.cli.printing import print_error, print_list


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
    with outputs.progress() as begin:
        begin("D2")(0.5)
        begin("drawing")(0.25)
    shown = terminal_shown.getvalue()
    for words in ("D2", "50%", "drawing", "25%"):
        assert words in shown


def test_there_is_no_bar_without_a_terminal(capsys) -> None:
    with outputs.progress() as begin:
        begin("D2")(0.5)
    assert capsys.readouterr().err == ""
