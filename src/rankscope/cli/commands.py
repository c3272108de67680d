"""Questions, claims, studies and the lab, a command each: options → configuration → answer.

Nothing heavy is imported before a command runs, so that ``--help`` answers at once.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rankscope.cli.application import app
from rankscope.cli.options import (
    FIELDS,
    ExperimentOptions,
    OutputOptions,
    PartsOptions,
    QuestionOptions,
    ReproduceOptions,
    asking,
    names,
    refuse,
    taken,
    takes,
)
from rankscope.cli.printing import print_json, print_list
from rankscope.errors import InputError
from rankscope.experiments import CATALOGUE, Kind, entries, entry
from rankscope.run import OUTPUT_FOLDER, ClaimSeries, claim_runs, over_seeds

if TYPE_CHECKING:
    from rankscope.results import Result

_FOUND = 3
"""The exit code of what was to fail and did; 2 is that of errors."""
_Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", show_default=False)]
_Id = Annotated[str | None, typer.Argument(metavar="ID", show_default=False)]


def _answer(id_: str, options: QuestionOptions, **chosen: Any) -> "Result":
    from rankscope.cli import inputs, outputs

    return outputs.run(CATALOGUE[id_], inputs.question(id_, options, **chosen), options)


@app.command()
@takes(asking("diagnose", PartsOptions, but=("without",)))
def diagnose(
    options: QuestionOptions,
    *,
    fail_on: Annotated[
        Literal["collapse", "slow"] | None,
        typer.Option(
            help="Exit with code 3 if a collapse is found (collapse), or is at least under way "
            "(slow); for scripts.",
            show_default=False,
        ),
    ] = None,
    fix: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            help="Write the model with the repairs that help into a new folder; its own files "
            "stay as they are.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Is it collapsing, where, why, and what now? One answer, one page, every part of every block.

    By default: a random network of BERT-base's shape on bundled text. Nothing is downloaded.
    """
    result = _answer("diagnose", options, fix=fix)
    failing = {"collapse": ("collapse",), "slow": ("collapse", "slow")}.get(fail_on or "", ())
    if any(finding.fate in failing for finding in result.findings):
        raise typer.Exit(_FOUND)
    if fail_on and not result.findings:
        raise InputError(
            f"--fail-on {fail_on}: there is no verdict, since the text does not fit the model; "
            "give one that it can read (--text)."
        )


@app.command()
@takes(OutputOptions)
def demo(options: OutputOptions) -> None:
    """A model that collapses, made here: what is wrong, why, what mends it; and its healthy twin.

    A BERT of MiniLM's size in which one norm is broken. Nothing is downloaded.
    """
    from rankscope.cli import outputs
    from rankscope.cli.demo import FACTOR, FAULT, demo_pair

    question, pair = CATALOGUE["diagnose"], demo_pair()
    config = question.module().Config
    outputs.run(question, config(pair.broken), options)
    if not options.as_json:
        healthy = question.run(config(pair.healthy)).headline
        assert healthy is not None  # every diagnosis has one
        typer.echo(f"\nWhat had been done to it: {FAULT} × {FACTOR:g}.")
        typer.echo(f"Its healthy twin, on the same texts: {healthy.text}.")


@app.command()
@takes(asking("trace"))
def trace(
    options: QuestionOptions,
    *,
    metrics: Annotated[
        str,
        typer.Option(
            help="Metrics, comma-separated; 'all' for every one (above 512 tokens, less those that "
            "are cubic in the tokens)."
        ),
    ] = "relative_residual,residual,dispersion,mean_cosine",
) -> None:
    """Measure every layer of one network or model."""
    from rankscope.cli import inputs, outputs
    from rankscope.core.tracing import MEASURES

    chosen = list(MEASURES) if metrics == "all" else names(metrics)
    config = inputs.question("trace", options, metrics=chosen)
    if metrics == "all":
        tokens = config.subject.x.shape[1]
        config = replace(config, metrics=inputs.affordable(chosen, tokens=tokens))
    outputs.run(CATALOGUE["trace"], config, options)


@app.command()
@takes(asking("paths", but=("without",)))
def paths(
    options: QuestionOptions,
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
    _answer("paths", options, count=count, max_length=max_length, by_head=by_head)


@app.command()
@takes(asking("deep"))
def deep(
    options: QuestionOptions,
    *,
    in_norm: Annotated[
        Literal["composite", "one", "inf", "fro", "spectral"],
        typer.Option(help="The matrix norm residuals are taken in."),
    ] = "composite",
    center: Annotated[
        Literal["mean", "median", "optimal"], typer.Option(help="What is subtracted.")
    ] = "mean",
) -> None:
    """How small does the residual get? Below 10^-100000 if it does, beside float64 and float32.

    By default: pure attention of BERT-base's shape, the network of the theorems of Dong et al.
    2021.
    """
    _answer("deep", options, in_norm=in_norm, center=center)


@app.command()
@takes(asking("bounds"))
def bounds(options: QuestionOptions) -> None:
    """What does theory promise for this network, and how far is the promise from the truth?

    Where a bound does not apply the answer says why. Residuals are in the composite norm at the
    best center, which the theorems are about.
    """
    _answer("bounds", options)


@app.command()
@takes(asking("masks"))
def masks(
    options: QuestionOptions,
    *,
    masks: Annotated[
        str,
        typer.Option(
            help="Masks, comma-separated: full, causal, window:8, causal-window:8, dilated:8:2, "
            "strided:8, block:16, star:1, bigbird:3:1:2, random:2, prefix:4; | and & put them "
            "together."
        ),
    ] = "full,causal,window:8,causal-window:8,strided:8,bigbird:2:1:2",
    depth: Annotated[
        int | None, typer.Option(help="Layers; a shallower network is repeated.")
    ] = None,
) -> None:
    """Which mask keeps tokens apart for how long? Graphs, rates, and residuals side by side.

    By default: pure attention of BERT-base's shape under six masks.
    """
    _answer("masks", options, masks=names(masks), depth=depth)


@app.command()
@takes(asking("predict"))
def predict(
    options: QuestionOptions,
    *,
    draws: Annotated[int, typer.Option(help="Networks that are drawn.")] = 16,
    gradients: Annotated[
        bool, typer.Option("--gradients", help="Also whether gradients vanish or explode (slower).")
    ] = False,
    infinite_width: Annotated[
        bool, typer.Option("--infinite-width", help="The limit of theory, not this width.")
    ] = False,
) -> None:
    """What will this design do, before it has weights? Predicted, and one network beside it.

    By default: the design of BERT-base at initialisation. Of a MODEL the architecture is predicted,
    and the model itself is measured beside it.
    """
    _answer("predict", options, draws=draws, gradients=gradients, infinite_width=infinite_width)


@app.command()
@takes(asking("advise"))
def advise(
    options: QuestionOptions,
    *,
    draws: Annotated[int, typer.Option(help="Networks predicted of each of the best.")] = 8,
    confirmed: Annotated[int, typer.Option(help="Changes measured, the best first.")] = 3,
    networks: Annotated[int, typer.Option(help="Networks measured of each.")] = 2,
) -> None:
    """What to change about a design? Real alternatives, by prediction, and the best measured.

    By default: BERT-base's shape on bundled text. Of a MODEL only the architecture is meant.
    """
    _answer("advise", options, draws=draws, confirmed=confirmed, networks=networks)


@app.command()
@takes(
    asking(
        "compare",
        only=("special_tokens", "pickled", "tokenizer", "ids", "dtype", "device", "seed", "text",
              "samples", "length"),
        seed="Seed of weights at initialisation.",
    )
)  # fmt: skip
def compare(
    options: QuestionOptions,
    *,
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="A B ...",
            help="Two or more: a folder or Hub id; either with @init behind it (bert-base@init), "
            "the architecture at initialisation; a folder of checkpoints; a .parquet file that "
            "trace or diagnose wrote.",
            show_default=False,
        ),
    ],
) -> None:
    """Which of these keeps its tokens apart? Models, checkpoints, runs, on the same text.

    'rankscope compare my-model my-model@init' shows what training did; 'rankscope compare run',
    where run holds checkpoint-100, checkpoint-200, ..., how it came about.
    """
    from rankscope.cli import inputs, outputs

    outputs.run(CATALOGUE["compare"], inputs.comparison(options, models), options)


@app.command()
def lab(
    *,
    host: Annotated[
        str,
        typer.Option(help="The address to bind to; others than 127.0.0.1 are open to others."),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(help="The port; 0 for any that is free.", show_default="8417, or a free one"),
    ] = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address; open no browser.")
    ] = False,
) -> None:
    """Play with a network and see it collapse, live, on a page of this machine.

    Nothing is loaded from elsewhere and nothing is sent anywhere. Ctrl-C ends it.
    """
    try:
        from rankscope.show.lab import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise InputError(
            f"the lab needs {error.name}, which is not installed; run "
            "pip install 'rankscope[lab]' and try again."
        ) from None
    serve(
        host=host,
        port=port,
        browser=not no_browser,
        on_ready=lambda address: typer.echo(f"The lab is at {address} (Ctrl-C ends it)."),
    )


def _help(opening: str, kind: Kind) -> dict[str, Any]:
    """What a command does, and below its options what there is."""
    listed = [f"{each.id}: {each.title.rstrip('.')}." for each in entries(kind).values()]
    return {
        "help": f"{opening}\n\nWithout an ID, all of them are listed.",
        "epilog": "\n\n".join(listed),
    }


@app.command(**_help("Re-check the papers' claims: verdicts from figures measured here.", "claim"))
@takes(ReproduceOptions)
def reproduce(options: ReproduceOptions, *, ids: _Ids = None) -> None:
    """Claims by their ids, or all of them."""
    if not ids and not options.everything:
        only = "without an ID or --all it lists the claims and takes --json and --output alone."
        refuse("reproduce", sorted(options.given - {"as_json", "output"}), options, only)
        series = over_seeds(claim_runs(options.output or OUTPUT_FOLDER))
        last = {same.runs[0].id: same for same in series}  # of each claim, the last
        _print_entries("claim", last, as_json=options.as_json)
        return
    if ids and options.everything:
        raise InputError(f"--all runs every claim; leave out {' '.join(ids)}, or --all.")
    from rankscope.cli import inputs, outputs

    claims = [entry(id_, "claim") for id_ in ids] if ids else entries("claim").values()
    chosen = inputs.configurations("reproduce", list(dict.fromkeys(claims)), options)
    if not outputs.reproduce(chosen, options):
        raise typer.Exit(2)


@app.command(**_help("Answer a question with many small networks, and charts.", "study"))
@takes(ExperimentOptions)
def study(options: ExperimentOptions, *, id_: _Id = None) -> None:
    """A study by its id."""
    if id_ is None:
        only = "without an ID it lists what there is and takes --json alone."
        refuse("study", sorted(options.given - {"as_json"}), options, only)
        _print_entries("study", {}, as_json=options.as_json)
        return
    from rankscope.cli import inputs, outputs

    chosen = entry(id_, "study")
    fields = inputs.configurations("study", [chosen], options)[chosen]
    outputs.run(chosen, chosen.configuration(**fields), options)


def _print_entries(kind: Kind, last_runs: Mapping[str, ClaimSeries], *, as_json: bool) -> None:
    """Claims or studies, a line each, or as an array; of a claim also how it last ended."""
    rows, lines = [], {}
    for listed in entries(kind).values():
        last = last_runs.get(listed.id)
        row = {name: getattr(listed, name) for name in ("id", "kind", "title", "source", "domain")}
        row["options"] = [field for field in FIELDS if field in listed.options]
        if kind == "claim":
            row["verdict"] = last and last.judgement and last.judgement.verdict
            row["seeds"] = last and last.seeds
            row["last"] = last and asdict(last.runs[-1])
        rows.append(row)
        source = f" ({listed.source})" if listed.source else ""
        options = ", ".join(taken(listed)) or "no options"
        ended = f". Last: {last.runs[0].failure or f'{last.verdict}; {last.seeds}'}" if last else ""
        lines[listed.id] = f"{listed.title.rstrip('.')}{source}. {options}{ended}"
    if as_json:
        print_json(rows)
    else:
        print_list(lines)
