"""Commands about depth: residuals beyond all floats, and the theory's bounds on them."""

from typing import Annotated, Literal

import typer

from rankscope.cli.application import app
from rankscope.cli.commands import names
from rankscope.cli.options import (
    FewTexts,
    ModelOptions,
    NetworkOptions,
    OutputOptions,
    takes,
)
from rankscope.errors import InputError

_Without = Annotated[
    str,
    typer.Option(
        help="Parts to leave out: skip, attention_skip, mlp_skip, mlp, norm; '' for none.",
        rich_help_panel="Network",
    ),
]


@app.command()
@takes(ModelOptions, NetworkOptions, FewTexts, OutputOptions)
def deep(
    model: ModelOptions,
    network: NetworkOptions,
    source: FewTexts,
    target: OutputOptions,
    *,
    without: _Without = "skip,mlp,norm",
    in_norm: Annotated[
        Literal["composite", "one", "inf", "fro", "spectral"],
        typer.Option(help="The matrix norm residuals are taken in."),
    ] = "composite",
    center: Annotated[
        Literal["mean", "median", "optimal"], typer.Option(help="What is subtracted.")
    ] = "mean",
) -> None:
    """How small does the residual get? Below 10^-100000 if it does, beside float64 and float32.

    By default: pure attention of BERT-base's shape, the network of the 2021 paper's theorems.
    """
    from rankscope.cli import deliver, prepare
    from rankscope.experiments import deep_study

    parts = prepare.parts_named(names(without))
    subject = prepare.subject(model, network, source)
    variant = subject.network.without(*parts)
    folder = deliver.folder(target)
    with deliver.progress("going deep", deep_study.passes(subject.batches)) as advance:
        found = deep_study.deep_study(
            variant,
            subject.x,
            subject.token_mask,
            measured=subject.measured,
            norm=in_norm,
            center=center,
            title=prepare.title_without(subject.title, without),
            batch_size=prepare.BATCH,
            on_batch=advance,
        )
    deliver.study(prepare.noted(found, subject.about), folder=folder, as_json=target.as_json)


@app.command()
@takes(ModelOptions, NetworkOptions, FewTexts, OutputOptions)
def bounds(
    model: ModelOptions,
    network: NetworkOptions,
    source: FewTexts,
    target: OutputOptions,
    *,
    without: _Without = "skip,mlp,norm",
) -> None:
    """What does theory promise for this network, and how far is the promise from the truth?

    Where a bound does not apply the answer says why. Residuals are in the composite norm at the
    best center, which the theorems are about.
    """
    from rankscope.cli import deliver, prepare
    from rankscope.experiments.bound_study import bound_study

    parts = prepare.parts_named(names(without))
    subject = prepare.subject(model, network, source)
    prepare.all_tokens_count(subject, "bounds")
    folder = deliver.folder(target)
    with deliver.progress("bounding", 1) as advance:
        found = bound_study(
            subject.network.without(*parts),
            subject.x,
            subject.token_mask,
            title=prepare.title_without(subject.title, without),
            on_done=advance,
        )
    deliver.study(prepare.noted(found, subject.about), folder=folder, as_json=target.as_json)


@app.command()
@takes(ModelOptions, NetworkOptions, FewTexts, OutputOptions)
def masks(
    model: ModelOptions,
    network: NetworkOptions,
    source: FewTexts,
    target: OutputOptions,
    *,
    masks: Annotated[
        str,
        typer.Option(
            help="Masks, comma-separated: full, causal, window:8, causal-window:8, dilated:8:2, "
            "strided:8, block:16, star:1, bigbird:3:1:2, prefix:4; | and & put them together."
        ),
    ] = "full,causal,window:8,causal-window:8,strided:8,bigbird:2:1:2",
    depth: Annotated[
        int | None, typer.Option(help="Layers; a shallower network is repeated.")
    ] = None,
    without: _Without = "skip,mlp,norm",
) -> None:
    """Which mask keeps tokens apart for how long? Graphs, rates, and residuals side by side.

    By default: pure attention of BERT-base's shape under six masks.
    """
    from rankscope.cli import deliver, prepare
    from rankscope.experiments.mask_study import mask_study

    if network.mask is not None:
        raise InputError("--mask names one mask; here --masks names those to compare.")
    chosen, parts = prepare.masks_named(names(masks)), prepare.parts_named(names(without))
    subject = prepare.subject(model, network, source)
    prepare.all_tokens_count(subject, "masks")
    folder = deliver.folder(target)
    with deliver.progress("masking", len(chosen)) as advance:
        found = mask_study(
            subject.network.without(*parts),
            subject.x,
            subject.token_mask,
            masks=chosen,
            depth=depth,
            title=prepare.title_without(subject.title, without),
            on_mask=advance,
        )
    deliver.study(prepare.noted(found, subject.about), folder=folder, as_json=target.as_json)


@app.command()
@takes(OutputOptions)
def study(
    target: OutputOptions,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="widths, patterns, layernorm or wu.")],
    models: Annotated[
        str, typer.Option(help="For wu: built-in names, at initialisation, comma-separated.")
    ] = "",
    pretrained: Annotated[
        list[str] | None,
        typer.Option(help="For wu: a folder or Hub id with weights, or LABEL=one; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the weights.")] = 0,
) -> None:
    """Answer a question with many small networks, and a chart.

    widths: what sets the speed of the collapse. patterns: linear, Linformer, Gaussian, sparsemax,
    sink and ALiBi attention side by side. layernorm: does LayerNorm alone stop the collapse? wu:
    the 2024 paper's figure, four masks and four sets of parts, to 128 layers.
    """
    from rankscope.cli import deliver, prepare, studies

    chosen = studies.known(name)
    prepare.checked_seed(seed)
    listed = names(models)
    if (listed or pretrained) and name != "wu":
        raise InputError(f"--models and --pretrained are for the study wu, not for {name}.")
    cases = prepare.cases(listed, pretrained or [], seed=seed) if listed or pretrained else []
    folder = deliver.folder(target)
    with deliver.progress(name, chosen.steps(cases)) as advance:
        found = chosen.run(cases, seed, advance)
    deliver.study(found, folder=folder, as_json=target.as_json)
