"""The commands: arguments → calls, nothing else.

Nothing heavy is imported before a command runs, so that ``--help`` answers at once.
"""

import io
import sys
from typing import Annotated, Any, Literal

import typer

from rankscope.cli.options import (
    InputOptions,
    ModelOptions,
    NetworkOptions,
    OutputOptions,
    ReadingOptions,
    takes,
)
from rankscope.errors import RankscopeError
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


@app.command()
@takes(ModelOptions, NetworkOptions, InputOptions, OutputOptions, ReadingOptions)
def diagnose(
    model: ModelOptions,
    network: NetworkOptions,
    source: InputOptions,
    target: OutputOptions,
    san: ReadingOptions,
) -> None:
    """Which parts keep the tokens apart? SAN, SAN+MLP, SAN+skip and transformer, side by side.

    By default: a random network of BERT-base's shape on bundled text. Nothing is downloaded.
    """
    from rankscope import experiments
    from rankscope.cli import deliver, prepare

    reading = experiments.Reading(san.norms, san.mlp)
    subject = prepare.subject(model, network, source)
    folder = deliver.folder(target)
    with deliver.progress("diagnosing", 4 * subject.batches) as advance:
        diagnosis = experiments.diagnose(
            subject.network,
            subject.x,
            subject.token_mask,
            measured=subject.measured,
            reading=reading,
            batch_size=prepare.BATCH,
            on_batch=advance,
        )
    title = f"{subject.title} ({reading})"
    about = {**subject.about, "reading of SAN": str(reading)}
    deliver.diagnosis(diagnosis, title=title, about=about, folder=folder, as_json=target.as_json)


@app.command()
@takes(ModelOptions, NetworkOptions, InputOptions, OutputOptions)
def trace(
    model: ModelOptions,
    network: NetworkOptions,
    source: InputOptions,
    target: OutputOptions,
    *,
    metrics: Annotated[
        str, typer.Option(help="Metrics, comma-separated; 'all' for every one.")
    ] = "relative_residual,residual,dispersion,mean_cosine",
    without: Annotated[
        str, typer.Option(help="Parts to leave out: skip, attention_skip, mlp_skip, mlp, norm.")
    ] = "",
) -> None:
    """Measure every layer of one network or model."""
    from rankscope.cli import deliver, prepare
    from rankscope.tracing import MEASURES, chosen, trace_in_batches

    names = list(MEASURES) if metrics == "all" else _names(metrics)
    chosen(names)  # a wrong name is found before any work is done
    subject = prepare.subject(model, network, source)
    variant = subject.network.without(*_names(without))
    folder = deliver.folder(target)
    with deliver.progress("tracing", subject.batches) as advance:
        traced = trace_in_batches(
            variant,
            subject.x,
            metrics=names,
            token_mask=subject.token_mask,
            measured=subject.measured,
            batch_size=prepare.BATCH,
            on_batch=advance,
        )
    about = {**subject.about, "without": without or "nothing"}
    deliver.trace(traced.noted(about), folder=folder, as_json=target.as_json)


@app.command()
@takes(InputOptions, OutputOptions, ReadingOptions)
def claim(
    source: InputOptions,
    target: OutputOptions,
    san: ReadingOptions,
    *,
    id_: Annotated[
        Literal["D1", "D5", "D8", "D9"], typer.Argument(metavar="ID", help="D1, D5, D8 or D9.")
    ],
    models: Annotated[
        str, typer.Option(help="Built-in names, tried at initialisation, comma-separated.")
    ] = "bert-base,albert-base-v2,xlnet-base",
    pretrained: Annotated[
        list[str] | None,
        typer.Option(help="A folder or Hub id with weights, or LABEL=one; may be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the weights.")] = 0,
) -> None:
    """Re-check a claim of the papers: a verdict from figures measured here.

    D1: paths sum to the output. D5: BERT, ALBERT and XLNet collapse without skips and not with
    them. D8: lengths of paths. D9: chained attention tends to rank one.
    """
    from rankscope.cli import check, deliver, prepare
    from rankscope.experiments import Reading

    cases = prepare.cases(_names(models), pretrained or [], seed=seed)
    texts = prepare.texts(source)
    folder = deliver.folder(target)
    asked = check.Asked(cases, texts, source.length, Reading(san.norms, san.mlp), seed)
    with deliver.progress(id_, check.steps(id_, asked)) as advance:
        checked = check.run(id_, asked, advance)
    deliver.claim(checked, folder=folder, as_json=target.as_json)


@app.command()
@takes(ModelOptions, NetworkOptions, InputOptions, OutputOptions)
def paths(
    model: ModelOptions,
    network: NetworkOptions,
    source: InputOptions,
    target: OutputOptions,
    *,
    count: Annotated[
        Literal["attention", "mlp", "both"], typer.Option(help="What makes a path longer.")
    ] = "attention",
    max_length: Annotated[
        int | None, typer.Option(help="Leave longer paths out.", show_default="none left out")
    ] = None,
    by_head: Annotated[
        bool, typer.Option("--by-head", help="Also what flows through each head (slow).")
    ] = False,
) -> None:
    """How much do paths of each length carry? Exactly, for all of them at once."""
    from rankscope import experiments
    from rankscope.cli import deliver, prepare

    subject = prepare.subject(model, network, source)
    folder = deliver.folder(target)
    with deliver.progress("adding up paths", subject.batches * (1 + by_head)) as advance:
        found = experiments.path_study(
            subject.network,
            subject.x,
            subject.token_mask,
            count=count,
            max_length=max_length,
            heads=by_head,
            batch_size=prepare.BATCH,
            on_batch=advance,
        )
    deliver.paths(
        found,
        title=subject.title,
        about={**subject.about, "counted": count},
        folder=folder,
        as_json=target.as_json,
    )


def main() -> None:
    """Run a command; whatever the caller can mend becomes one sentence and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ‖ still shows the figures
    try:
        code = app(standalone_mode=False)
        if isinstance(code, int) and code:  # Typer hands an interruption back as a number
            _fail("interrupted.", code)
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
        _fail("interrupted.", 130)


def _fail(message: str, code: int) -> None:
    typer.echo(f"rankscope: {message}", err=True)
    sys.exit(code)


def _names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",") if name.strip()]
