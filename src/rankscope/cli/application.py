"""The application: its name and version, and how it ends."""

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

# Typer carries its own copy of Click in some versions and imports Click in others; the base of its
# errors is found through the one it exports.
_USAGE_ERROR: Any = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)

_NO_ROOM = "Too many open files|No space left on device|disk is full|File too large|quota exceeded"
_NO_MEMORY = "can't allocate memory|out of memory|Unable to allocate|Storage size calculation"


class _Commands(TyperGroup):
    """All commands; keeps the words they are called with."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = tuple(args)
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Commands,
    help="See how a transformer loses, or keeps, the differences between its tokens.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """See how a transformer loses, or keeps, the differences between its tokens."""
    if version:
        typer.echo(f"rankscope {__version__}")
        raise typer.Exit


def main() -> None:
    """Run a command; whatever goes wrong becomes one sentence and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ‖ still shows the figures
    try:
        if sys.stdout is None:
            raise InputError("standard output is closed, so there is nowhere to write the answer.")
        with prompt_interruption():
            code = app(standalone_mode=False)
        if code == INTERRUPTED:  # Typer hands an interruption back as a number
            _fail("interrupted.", code)
        if isinstance(code, int) and code:  # a command has said already what is wrong
            sys.exit(code)
    except _USAGE_ERROR as error:
        message = error.format_message().rstrip(".")
        if not message:  # the help was asked for by giving no command
            sys.exit(error.exit_code)
        _fail(f"{message}; 'rankscope --help' lists what there is.", error.exit_code)
    except RankscopeError as error:
        _fail(str(error), error.exit_code)
    except OSError as error:
        where = "" if error.filename is None else f": {error.filename}"
        _fail(f"{error.strerror or error}{where}.", 2)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted.", INTERRUPTED)
    except SystemExit:
        raise
    except BaseException as error:  # whatever we did not foresee; a panic of polars is no Exception
        _fail(*_unforeseen(error))


def _unforeseen(error: BaseException) -> tuple[str, int]:
    """A message about an error that is not one of ours; the traceback is kept in a file."""
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError) or re.search(_NO_MEMORY, said):
        return "there is not enough memory for this; make the network or the input smaller.", 2
    if full := re.search(_NO_ROOM, said, re.IGNORECASE):  # as libraries say it that are not Python
        return f"the system refused this: {full[0]}; make room for it, and try again.", 2
    kept = ""
    with suppress(OSError):
        with tempfile.NamedTemporaryFile(
            "w", prefix="rankscope-error-", suffix=".txt", delete=False, errors="replace"
        ) as file:
            file.writelines(traceback.format_exception(error))
        kept = f" Where it happened is in {file.name}."
    return f"this should not have happened ({said.rstrip('.')}); please report it.{kept}", 1


def _fail(message: str, code: int) -> None:
    print_error(printable(message))
    sys.exit(code)
