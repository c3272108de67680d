"""The questions, each one function: options → what is asked about → answer.

Nothing heavy is imported before a command runs, so that ``--help`` answers at once.
"""

from typing import Annotated, Literal

import typer

from rankscope.cli.application import app
from rankscope.cli.options import (
    FewTexts,
    Given,
    InputOptions,
    ModelOptions,
    NetworkOptions,
    OutputOptions,
    ReadingOptions,
    takes,
)
from rankscope.errors import InputError
from rankscope.experiments.catalogue import CATALOGUE

_PURE_ATTENTION = "skip,mlp,norm"
_Without = Annotated[
    str,
    typer.Option(
        help="Parts to leave out: skip, attention_skip, mlp_skip, mlp, norm; '' for none.",
        rich_help_panel="Network",
    ),
]


@app.command()
@takes(ModelOptions, NetworkOptions, InputOptions, OutputOptions, ReadingOptions)
def diagnose(
    model: ModelOptions,
    network: NetworkOptions,
    source: InputOptions,
    target: OutputOptions,
    san: ReadingOptions,
    *,
    given: Given,
) -> None:
    """Which parts keep the tokens apart? SAN, SAN+MLP, SAN+skip and transformer, side by side.

    By default: a random network of BERT-base's shape on bundled text. Nothing is downloaded.
    """
    from rankscope.cli import inputs, outputs
    from rankscope.experiments.variants import Reading

    subject = inputs.subject(model, network, source, given)
    outputs.run(CATALOGUE["diagnose"], target, subject=subject, reading=Reading(san.norms, san.mlp))


@app.command()
@takes(ModelOptions, NetworkOptions, InputOptions, OutputOptions)
def trace(
    model: ModelOptions,
    network: NetworkOptions,
    source: InputOptions,
    target: OutputOptions,
    *,
    given: Given,
    metrics: Annotated[
        str, typer.Option(help="Metrics, comma-separated; 'all' for every one.")
    ] = "relative_residual,residual,dispersion,mean_cosine",
    without: _Without = "",
) -> None:
    """Measure every layer of one network or model."""
    from rankscope.cli import inputs, outputs
    from rankscope.tracing import MEASURES, chosen

    asked = list(MEASURES) if metrics == "all" else inputs.names(metrics)
    of_attention = [one.name for one in chosen(asked) if one.of == "attention"]
    if of_attention:
        asking = f"trace --metrics {','.join(of_attention)}"
        inputs.count_all_tokens(asking, model, "attention is between all tokens")
    subject = inputs.subject(model, network, source, given, without=without)
    outputs.run(CATALOGUE["trace"], target, with_table=True, subject=subject, metrics=tuple(asked))


@app.command()
@takes(ModelOptions, NetworkOptions, InputOptions, OutputOptions)
def paths(
    model: ModelOptions,
    network: NetworkOptions,
    source: InputOptions,
    target: OutputOptions,
    *,
    given: Given,
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

    inputs.count_all_tokens("paths", model, "paths are added up for all tokens")
    subject = inputs.subject(model, network, source, given)
    outputs.run(
        CATALOGUE["paths"],
        target,
        subject=subject,
        count=count,
        max_length=max_length,
        heads=by_head,
    )


@app.command()
@takes(ModelOptions, NetworkOptions, FewTexts, OutputOptions)
def deep(
    model: ModelOptions,
    network: NetworkOptions,
    source: FewTexts,
    target: OutputOptions,
    *,
    given: Given,
    without: _Without = _PURE_ATTENTION,
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

    subject = inputs.subject(model, network, source, given, without=without)
    outputs.run(CATALOGUE["deep"], target, subject=subject, norm=in_norm, center=center)


@app.command()
@takes(ModelOptions, NetworkOptions, FewTexts, OutputOptions)
def bounds(
    model: ModelOptions,
    network: NetworkOptions,
    source: FewTexts,
    target: OutputOptions,
    *,
    given: Given,
    without: _Without = _PURE_ATTENTION,
) -> None:
    """What does theory promise for this network, and how far is the promise from the truth?

    Where a bound does not apply the answer says why. Residuals are in the composite norm at the
    best center, which the theorems are about.
    """
    from rankscope.cli import inputs, outputs

    inputs.count_all_tokens("bounds", model, "the theorems' bounds are about all tokens")
    subject = inputs.subject(model, network, source, given, without=without)
    outputs.run(CATALOGUE["bounds"], target, subject=subject)


@app.command()
@takes(ModelOptions, NetworkOptions, FewTexts, OutputOptions)
def masks(
    model: ModelOptions,
    network: NetworkOptions,
    source: FewTexts,
    target: OutputOptions,
    *,
    given: Given,
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
    without: _Without = _PURE_ATTENTION,
) -> None:
    """Which mask keeps tokens apart for how long? Graphs, rates, and residuals side by side.

    By default: pure attention of BERT-base's shape under six masks.
    """
    from rankscope.cli import inputs, outputs

    if network.mask is not None:
        raise InputError("--mask names one mask; here --masks names those to compare.")
    inputs.count_all_tokens("masks", model, "graphs of masks are about all tokens")
    listed = inputs.names(masks)
    chosen = inputs.masks(listed, network.seed)
    subject = inputs.subject(model, network, source, given, without=without, masks=listed)
    outputs.run(CATALOGUE["masks"], target, subject=subject, masks=chosen, depth=depth)
