"""One command per question, plus claims, studies and the lab: options → configuration → result.

Heavy modules are imported only when a command runs, so that ``--help`` is fast.
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

_COLLAPSED = 3
"""Exit code of ``--fail-on``; errors exit with 2."""
_IDS = "Ids as listed below."
_Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help=_IDS, show_default=False)]
_Id = Annotated[str | None, typer.Argument(metavar="ID", help=_IDS, show_default=False)]


def _answer(id_: str, options: QuestionOptions, **chosen: Any) -> "Result":
    _start_page(options)
    from rankscope.cli import inputs, outputs

    return outputs.run(CATALOGUE[id_], inputs.question(id_, options, **chosen), options)


def _start_page(options: OutputOptions) -> None:
    """Start what draws the page, if there is to be one; meanwhile models are imported and read."""
    if options.output is not None or not options.as_json:
        from rankscope.show import figures

        figures.start_renderer()


@app.command()
@takes(asking("diagnose", PartsOptions, but=("without",)))
def diagnose(
    options: QuestionOptions,
    *,
    fail_on: Annotated[
        Literal["collapse", "slow"] | None,
        typer.Option(
            help="Exit with code 3 if the model collapses (collapse), or also if a collapse is in "
            "progress (slow). For scripts.",
            show_default=False,
        ),
    ] = None,
    fix: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            help="Apply the repairs that help and save the model to this new folder; the original "
            "files are not changed.",
            show_default=False,
        ),
    ] = "",
    chapters: Annotated[
        str,
        typer.Option(
            help="Comma-separated chapters that take time of their own: paths, core (attention "
            "alone in scaled arithmetic), bounds, design, or all; '' for none."
        ),
    ] = "design",
) -> None:
    """Does the model collapse? Where, why, and what to change: one answer and one page.

    By default: a random network with BERT-base's shape on bundled text. Nothing
    is downloaded.
    """
    result = _answer("diagnose", options, fix=fix, chapters=names(chapters))
    failing = {"collapse": ("collapse",), "slow": ("collapse", "slow")}.get(fail_on or "", ())
    if any(finding.fate in failing for finding in result.findings):
        raise typer.Exit(_COLLAPSED)
    if fail_on and not result.findings:
        raise InputError(
            f"--fail-on {fail_on}: there is no verdict, since the text does not fit the model; "
            "give one that it can read (--text)."
        )


@app.command()
@takes(OutputOptions)
def demo(options: OutputOptions) -> None:
    """Diagnose a model that collapses, and the same model without the fault.

    The model is a random BERT of MiniLM's size with one broken norm. Nothing is
    downloaded.
    """
    _start_page(options)
    from rankscope.cli import outputs
    from rankscope.cli.demo import FACTOR, FAULT, demo_pair

    question, pair = CATALOGUE["diagnose"], demo_pair()
    config = question.module().Config
    outputs.run(question, config(pair.broken), options)
    if not options.as_json:
        healthy = question.run(config(pair.healthy, chapters=())).headline
        assert healthy is not None  # every diagnosis has one
        typer.echo(f"\nThe fault: {FAULT} was multiplied by {FACTOR:g}.")
        typer.echo(f"The same model without the fault, on the same text: {healthy.text}.")


@app.command()
@takes(asking("trace"))
def trace(
    options: QuestionOptions,
    *,
    metrics: Annotated[
        str,
        typer.Option(
            help="Comma-separated metrics, or 'all'. Above 512 tokens, 'all' excludes metrics "
            "whose cost is cubic in the sequence length."
        ),
    ] = "relative_residual,residual,dispersion,mean_cosine",
) -> None:
    """Measure every layer of a model."""
    _start_page(options)
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
        Literal["attention", "mlp", "both"],
        typer.Option(help="Which blocks count towards the length of a path."),
    ] = "attention",
    max_length: Annotated[
        int | None, typer.Option(help="Maximum path length.", show_default="no limit")
    ] = None,
    by_head: Annotated[
        bool, typer.Option("--by-head", help="Also report each attention head (slow).")
    ] = False,
) -> None:
    """How much of the output do paths of each length carry? Exact, over all paths."""
    _answer("paths", options, count=count, max_length=max_length, by_head=by_head)


@app.command()
@takes(asking("deep"))
def deep(
    options: QuestionOptions,
    *,
    in_norm: Annotated[
        Literal["composite", "one", "inf", "fro", "spectral"],
        typer.Option(help="Matrix norm of the residual."),
    ] = "composite",
    center: Annotated[
        Literal["mean", "median", "optimal"],
        typer.Option(help="Center that is subtracted from the tokens."),
    ] = "mean",
) -> None:
    """How small does the residual get? Resolves values below 10^-100000; compares with floats.

    By default: attention alone with BERT-base's shape, as in the theorems of Dong
    et al. 2021.
    """
    _answer("deep", options, in_norm=in_norm, center=center)


@app.command()
@takes(asking("bounds"))
def bounds(options: QuestionOptions) -> None:
    """What do the theoretical bounds guarantee for this network, and how tight are they?

    If a bound does not apply, the answer says why. Residuals use the composite
    norm and the optimal center, as in the theorems.
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
            help="Comma-separated masks: full, causal, window:8, causal-window:8, dilated:8:2, "
            "strided:8, block:16, star:1, bigbird:3:1:2, random:2, prefix:4. Combine masks "
            "with | and &."
        ),
    ] = "full,causal,window:8,causal-window:8,strided:8,bigbird:2:1:2",
    depth: Annotated[
        int | None, typer.Option(help="Number of layers; a shallower network is repeated.")
    ] = None,
) -> None:
    """Compare attention masks: graph properties, convergence rates and residuals.

    By default: attention alone with BERT-base's shape under six masks.
    """
    _answer("masks", options, masks=names(masks), depth=depth)


@app.command()
@takes(asking("predict"))
def predict(
    options: QuestionOptions,
    *,
    draws: Annotated[int, typer.Option(help="Number of random networks.")] = 16,
    gradients: Annotated[
        bool,
        typer.Option(
            "--gradients", help="Also predict whether gradients vanish or explode (slower)."
        ),
    ] = False,
    infinite_width: Annotated[
        bool, typer.Option("--infinite-width", help="Predict the limit of infinite width.")
    ] = False,
) -> None:
    """Predict how an architecture behaves at initialisation, and measure one network.

    By default: BERT-base at initialisation. Given a MODEL, its architecture is
    predicted and the model itself is measured for comparison.
    """
    _answer("predict", options, draws=draws, gradients=gradients, infinite_width=infinite_width)


@app.command()
@takes(asking("advise"))
def advise(
    options: QuestionOptions,
    *,
    draws: Annotated[
        int, typer.Option(help="Random networks per candidate in the prediction.")
    ] = 8,
    confirmed: Annotated[int, typer.Option(help="Number of changes to measure, best first.")] = 3,
    networks: Annotated[int, typer.Option(help="Random networks to measure per change.")] = 2,
) -> None:
    """Rank changes to an architecture by prediction, and measure the best ones.

    By default: BERT-base's shape on bundled text. Given a MODEL, only its
    architecture is used.
    """
    _answer("advise", options, draws=draws, confirmed=confirmed, networks=networks)


@app.command()
@takes(
    asking(
        "compare",
        only=("special_tokens", "pickled", "tokenizer", "ids", "dtype", "device", "seed", "text",
              "samples", "length"),
        seed="Random seed of initial weights.",
    )
)  # fmt: skip
def compare(
    options: QuestionOptions,
    *,
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="A B ...",
            help="Two or more of: a model folder or Hub id; the same followed by @init "
            "(bert-base@init) for random initial weights; a folder of checkpoints, or one of them "
            "by its step (run@500); a .parquet file written by trace or diagnose.",
            show_default=False,
        ),
    ],
) -> None:
    """Compare models, checkpoints or saved results on the same text.

    'rankscope compare my-model my-model@init' shows the effect of training;
    'rankscope compare run', where run contains checkpoint-100, checkpoint-200,
    ..., shows its course.
    """
    _start_page(options)
    from rankscope.cli import inputs, outputs

    outputs.run(CATALOGUE["compare"], inputs.comparison(options, models), options)


@app.command()
def lab(
    *,
    host: Annotated[
        str,
        typer.Option(
            help="Address to bind to; any other than 127.0.0.1 is reachable from other machines."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(help="Port; 0 for any free port.", show_default="8417, or a free port"),
    ] = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address only; do not open a browser.")
    ] = False,
) -> None:
    """Explore a small network interactively in the browser.

    Runs locally and works offline; no data is sent anywhere. Stop it with Ctrl-C.
    """
    from rankscope.show.lab import serve

    serve(
        host=host,
        port=port,
        browser=not no_browser,
        on_ready=lambda address: typer.echo(
            f"The lab is running at {address} (stop it with Ctrl-C)."
        ),
    )


def _help(opening: str, kind: Kind) -> dict[str, Any]:
    """The help of a command that takes the ids of one kind of experiment."""
    return {
        "help": f"{opening}\n\nWithout an ID, list all of them with their options.",
        "epilog": f"IDs: {', '.join(entries(kind))}",
    }


@app.command(
    **_help("Re-check claims of papers: run each experiment and derive a verdict.", "claim")
)
@takes(ReproduceOptions)
def reproduce(options: ReproduceOptions, *, ids: _Ids = None) -> None:
    """Run claims by id, or all of them."""
    if not ids and not options.everything:
        only = "without an ID or --all it lists the claims and takes only --json and --output."
        refuse("reproduce", sorted(options.specified - {"as_json", "output"}), options, only)
        series = over_seeds(claim_runs(options.output or OUTPUT_FOLDER))
        last = {same.runs[0].id: same for same in series}  # the latest of each claim
        _print_entries("claim", last, as_json=options.as_json)
        return
    if ids and options.everything:
        raise InputError(f"--all runs every claim; leave out {' '.join(ids)}, or --all.")
    from rankscope.cli import inputs, outputs

    claims = [entry(id_, "claim") for id_ in ids] if ids else entries("claim").values()
    chosen = inputs.configurations("reproduce", list(dict.fromkeys(claims)), options)
    if not outputs.reproduce(chosen, options):
        raise typer.Exit(2)


@app.command(**_help("Run a study: many small networks, tables and charts.", "study"))
@takes(ExperimentOptions)
def study(options: ExperimentOptions, *, id_: _Id = None) -> None:
    """Run a study by id."""
    if id_ is None:
        only = "without an ID it lists the studies and takes only --json."
        refuse("study", sorted(options.specified - {"as_json"}), options, only)
        _print_entries("study", {}, as_json=options.as_json)
        return
    _start_page(options)
    from rankscope.cli import inputs, outputs

    chosen = entry(id_, "study")
    fields = inputs.configurations("study", [chosen], options)[chosen]
    outputs.run(chosen, chosen.configuration(**fields), options)


def _print_entries(kind: Kind, last_runs: Mapping[str, ClaimSeries], *, as_json: bool) -> None:
    """Print claims or studies, one per line or as a JSON array; claims with their last verdict."""
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
