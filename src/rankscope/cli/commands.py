"""The commands: arguments → calls, nothing else.

Nothing heavy is imported before a command runs, so that ``--help`` answers at once.
"""

from typing import Annotated, Literal

import typer

from rankscope.cli.application import app
from rankscope.cli.options import (
    InputOptions,
    ModelOptions,
    NetworkOptions,
    OutputOptions,
    ReadingOptions,
    takes,
)


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

    asked = list(MEASURES) if metrics == "all" else names(metrics)
    chosen(asked)  # a wrong name is found before any work is done
    subject = prepare.subject(model, network, source)
    variant = subject.network.without(*names(without))
    folder = deliver.folder(target)
    with deliver.progress("tracing", subject.batches) as advance:
        traced = trace_in_batches(
            variant,
            subject.x,
            metrics=asked,
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
        str, typer.Argument(metavar="ID", help="D1, D2, D3, D4, D5, D8, D9, N1, W1 to W5.")
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

    D1: paths sum to the output. D2: pure attention collapses doubly exponentially. D3: MLPs slow
    it. D4: skips stop it. D5: BERT, ALBERT and XLNet collapse without skips and not with them.
    D8: lengths of paths. D9: chained attention tends to rank one. N1: pairwise positions make it
    exponential only. W1: masks and their radius. W2: LayerNorm alone. W3: LayerNorm with orthogonal
    values. W4: equilibria of every rank. W5: rank and cosine of real models. --models and
    --pretrained are for D5, D9 and W5.
    """
    from rankscope.cli import check, deliver, prepare
    from rankscope.experiments import Reading

    id_ = check.known(id_)
    prepare.checked_seed(seed)
    cases = prepare.cases(names(models), pretrained or [], seed=seed)
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


def names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",") if name.strip()]
