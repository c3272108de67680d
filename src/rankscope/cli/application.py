"""The application: its name and version, and how it ends."""

import io
import sys
from typing import Annotated, Any

import typer

from rankscope.cli.printing import print_error
from rankscope.errors import RankscopeError
from rankscope.interruption import INTERRUPTED, prompt_interruption
from rankscope.version import __version__

# Typer carries its own copy of Click in some versions and imports Click in others; the base of its
# errors is found through the one it exports.
_USAGE_ERROR: Any = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)

app = typer.Typer(
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
    """Run a command; whatever the caller can mend becomes one sentence and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ‖ still shows the figures
    try:
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
    except (MemoryError, RuntimeError) as error:
        told = str(error).lower()
        if isinstance(error, RuntimeError) and "alloc" not in told and "overflow" not in told:
            raise  # not the user's to mend
        _fail("there is not enough memory for this; make the network or the input smaller.", 2)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted.", INTERRUPTED)


def _fail(message: str, code: int) -> None:
    print_error(message)
    sys.exit(code)
