"""The questions, each one function: options → what is asked about → answer.

Nothing heavy is imported before a command runs, so that ``--help`` answers at once.
"""

from typing import Annotated, Literal

import typer

from rankscope.cli.application import app
from rankscope.cli.options import (
    AdviceOptions,
    ComparisonOptions,
    DepthOptions,
    DiagnosisOptions,
    PredictionOptions,
    QuestionOptions,
    names,
    takes,
)
from rankscope.errors import InputError
from rankscope.experiments.catalogue import CATALOGUE


@app.command()
@takes(DiagnosisOptions)
def diagnose(options: DiagnosisOptions) -> None:
    """Is it collapsing, where, why, and what now? One answer, one page, every part of every block.

    By default: a random network of BERT-base's shape on bundled text. Nothing is downloaded.
    """
    from rankscope.cli import inputs, outputs
    from rankscope.experiments.variants import Reading

    subject = inputs.subject(options, unfit=True)
    outputs.run(
        CATALOGUE["diagnose"], options, subject=subject, reading=Reading(options.norms, options.mlp)
    )


@app.command()
@takes(QuestionOptions)
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
    without: Annotated[
        str, typer.Option(help="Parts to leave out: skip, attention_skip, mlp_skip, mlp, norm.")
    ] = "",
) -> None:
    """Measure every layer of one network or model."""
    from rankscope.cli import inputs, outputs
    from rankscope.core.tracing import MEASURES, choose_measures

    asked = list(MEASURES) if metrics == "all" else names(metrics)
    of_attention = [one.name for one in choose_measures(asked) if one.of == "attention"]
    if of_attention:
        asking = f"trace --metrics {','.join(of_attention)}"
        inputs.count_all_tokens(asking, options, "attention is between all tokens")
    subject = inputs.subject(options, without=without)
    if metrics == "all":
        asked = inputs.affordable(asked, tokens=subject.x.shape[1])
    outputs.run(CATALOGUE["trace"], options, with_table=True, subject=subject, metrics=tuple(asked))


@app.command()
@takes(QuestionOptions)
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
    from rankscope.cli import inputs, outputs

    if options.dtype in ("bfloat16", "float16"):
        raise InputError(
            f"paths takes no --dtype {options.dtype}: sums over many paths mean nothing in it; use "
            "float32 or float64."
        )
    subject = inputs.subject(options)
    outputs.run(
        CATALOGUE["paths"],
        options,
        subject=subject,
        count=count,
        max_length=max_length,
        heads=by_head,
    )


@app.command()
@takes(DepthOptions)
def deep(
    options: DepthOptions,
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
    from rankscope.cli import inputs, outputs

    subject = inputs.subject(options, without=options.without)
    outputs.run(CATALOGUE["deep"], options, subject=subject, norm=in_norm, center=center)


@app.command()
@takes(DepthOptions)
def bounds(options: DepthOptions) -> None:
    """What does theory promise for this network, and how far is the promise from the truth?

    Where a bound does not apply the answer says why. Residuals are in the composite norm at the
    best center, which the theorems are about.
    """
    from rankscope.cli import inputs, outputs

    inputs.count_all_tokens("bounds", options, "the theorems' bounds are about all tokens")
    subject = inputs.subject(options, without=options.without)
    outputs.run(CATALOGUE["bounds"], options, subject=subject)


@app.command()
@takes(DepthOptions)
def masks(
    options: DepthOptions,
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
    from rankscope.cli import inputs, outputs

    if options.mask is not None:
        raise InputError("--mask names one mask; here --masks names those to compare.")
    inputs.count_all_tokens("masks", options, "graphs of masks are about all tokens")
    listed = names(masks)
    chosen = inputs.masks(listed, options.seed)
    subject = inputs.subject(options, without=options.without, masks=listed)
    outputs.run(CATALOGUE["masks"], options, subject=subject, masks=chosen, depth=depth)


@app.command()
@takes(PredictionOptions)
def predict(
    options: PredictionOptions,
    *,
    draws: Annotated[int, typer.Option(help="Networks that are drawn.")] = 16,
    gradients: Annotated[
        bool, typer.Option("--gradients", help="Also whether gradients vanish or explode (slower).")
    ] = False,
    infinite_width: Annotated[
        bool, typer.Option("--infinite-width", help="The limit of theory, not this width.")
    ] = False,
    without: Annotated[
        str, typer.Option(help="Parts to leave out: skip, attention_skip, mlp_skip, mlp, norm.")
    ] = "",
) -> None:
    """What will this design do, before it has weights? Predicted, and one network beside it.

    By default: the design of BERT-base at initialisation. Of a MODEL the architecture is predicted,
    and the model itself is measured beside it.
    """
    from rankscope.cli import inputs, outputs

    inputs.count_all_tokens("predict", options, "predictions are about all tokens")
    subject = inputs.subject(options, without=without)
    outputs.run(
        CATALOGUE["predict"],
        options,
        subject=subject,
        draws=draws,
        gradients=gradients,
        infinite_width=infinite_width,
    )


@app.command()
@takes(AdviceOptions)
def advise(
    options: AdviceOptions,
    *,
    draws: Annotated[int, typer.Option(help="Networks predicted of each of the best.")] = 8,
    confirmed: Annotated[int, typer.Option(help="Changes measured, the best first.")] = 3,
    networks: Annotated[int, typer.Option(help="Networks measured of each.")] = 2,
) -> None:
    """What to change about a design? Real alternatives, by prediction, and the best measured.

    By default: BERT-base's shape on bundled text. Of a MODEL only the architecture is meant.
    """
    from rankscope.cli import inputs, outputs

    inputs.count_all_tokens("advise", options, "predictions are about all tokens")
    subject = inputs.subject(options, without=options.without)
    outputs.run(
        CATALOGUE["advise"],
        options,
        subject=subject,
        draws=draws,
        confirmed=confirmed,
        networks=networks,
        seed=options.seed,
    )


@app.command()
@takes(ComparisonOptions)
def compare(
    options: ComparisonOptions,
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

    outputs.run(CATALOGUE["compare"], options, **inputs.compared(options, models))
