"""The command-line application: version, error messages and exit codes."""

import io
import re
import sys
import tempfile
import traceback
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rankscope.cli.options import WORDS
from rankscope.cli.printing import print_error
from rankscope.errors import InputError, RankscopeError, printable
from rankscope.process import INTERRUPTED, prompt_interruption
from rankscope.version import __version__

# Some versions of Typer bundle Click and others import it, so look up the base class of its errors
# through one that Typer exports.
_USAGE_ERROR: Any = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)

_NO_SPACE = "Too many open files|No space left on device|disk is full|File too large|quota exceeded"
_NO_MEMORY = "can't allocate memory|out of memory|Unable to allocate|Storage size calculation"


class _Commands(TyperGroup):
    """The group of all commands; stores the arguments of the command line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = tuple(args)
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Commands,
    help="Measure, explain and repair rank collapse in transformers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Measure, explain and repair rank collapse in transformers."""
    if version:
        typer.echo(f"rankscope {__version__}")
        raise typer.Exit


def main() -> None:
    """Run a command; every error becomes one sentence, with its page below, and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # e.g. a terminal without ‖
    try:
        if sys.stdout is None:
            raise InputError("standard output is closed; the result cannot be written.")
        with prompt_interruption():
            code = app(standalone_mode=False)
        if code == INTERRUPTED:  # Typer returns the exit code of an interruption
            _fail("interrupted.", code)
        if isinstance(code, int) and code:  # the command has already printed the error
            sys.exit(code)
    except _USAGE_ERROR as error:
        message = error.format_message().rstrip(".")
        if not message:  # no command was given; Typer has printed the help
            sys.exit(error.exit_code)
        _fail(f"{message}; see 'rankscope --help'.", error.exit_code)
    except RankscopeError as error:
        _fail(str(error), error.exit_code, *error.__notes__)
    except OSError as error:
        where = "" if error.filename is None else f": {error.filename}"
        _fail(f"{error.strerror or error}{where}.", 2)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted.", INTERRUPTED)
    except SystemExit:
        raise
    except BaseException as error:  # a panic of polars is not an Exception
        _fail(*_internal_error(error))


def _internal_error(error: BaseException) -> tuple[str, int]:
    """The message and exit code for an unexpected error; the traceback is written to a file."""
    description = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError) or re.search(_NO_MEMORY, description):
        return "not enough memory; use a smaller network or a shorter input.", 2
    if match := re.search(_NO_SPACE, description, re.IGNORECASE):  # raised outside Python
        return f"operating system error: {match[0]}; free some and try again.", 2
    location = ""
    with suppress(OSError):
        with tempfile.NamedTemporaryFile(
            "w",
            prefix="rankscope-error-",
            suffix=".txt",
            delete=False,
            encoding="utf-8",
            errors="replace",
        ) as file:
            file.writelines(traceback.format_exception(error))
        location = f" Traceback written to {file.name}."
    return f"Internal error: {description.rstrip('.')}; please report it.{location}", 1


def _fail(message: str, code: int, *notes: str) -> None:
    print_error(printable(message), *map(printable, notes))
    sys.exit(code)
