"""Models, runs or checkpoints side by side: which loses the differences between tokens, where?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import nn

from rankscope import results, tables
from rankscope.arguments import checked
from rankscope.ask import Cost, Dtype, Model, Source, free_name, model_subject, refuse_unasked
from rankscope.core.tracing import Trace
from rankscope.errors import InputError, RankscopeError
from rankscope.experiments import kit
from rankscope.experiments.questions import _comparison as words
from rankscope.experiments.variants import TRANSFORMER
from rankscope.models.calls import Inputs, ReadInputs, read_inputs
from rankscope.models.checkpoints import (
    INIT,
    checkpoints_in,
    holds_model,
    resolve_checkpoint,
    step_of,
)
from rankscope.models.families import Loaded
from rankscope.results import Result

ENTRY = kit.question(
    "compare",
    "Which of these keeps its tokens apart?",
    metrics=(
        kit.Metric(
            "lowest_relative_residual",
            "Lowest relative residual",
            "of all layers",
            "log",
            "0 = all tokens alike",
            "The relative residual in the layer where its median over the samples is lowest.",
            "down",
        ),
        kit.Metric(
            "last_mean_cosine",
            "Mean cosine at the end",
            "last layer",
            "linear",
            "1 = all tokens point the same way",
            "The mean cosine between tokens after the last layer.",
            "up",
            includes=(0.0, 1.0),
        ),
        kit.Metric(
            "last_effective_rank",
            "Effective rank at the end",
            "last layer",
            "linear",
            "1 = one direction is left",
            "The effective rank of the tokens after the last layer.",
            "down",
            includes=(1.0,),
        ),
    ),
)
_WHOLE = ("this model", TRANSFORMER)
"""The variant name of the network itself in results that also have ablations."""


@dataclass(frozen=True)
class Config(kit.Config):
    """Models and their common input; the seed is that of random weights."""

    models: tuple[Model, ...] = ()
    texts: tuple[str, ...] | None = None
    """The texts; default: the first bundled passages."""
    ids: tuple[tuple[int, ...], ...] | None = None
    """Token ids instead of texts."""
    samples: int = 32
    """The number of bundled passages."""
    length: int | None = None
    """Maximum tokens per sample; default: 128, or the model's number of positions."""
    special_tokens: bool = True
    tokenizer: Any = None
    pickled: bool = False
    device: str | None = None
    dtype: Dtype | None = None
    """Default: that of the model."""
    limited: bool = False
    """Whether work of more than a few minutes is refused."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.models) < 2:
            raise InputError(f"a comparison needs two models or more, got {len(self.models)}.")

    def describe(self) -> dict[str, Any]:
        """Every field that changes a number."""
        described = super().describe()
        del described["limited"]
        return described

    @property
    def metrics(self) -> tuple[str, ...]:
        """What is measured; attention is between all tokens, special ones among them."""
        return words.METRICS if self.special_tokens else words.OF_TOKENS


def cost(config: Config) -> Cost:
    """The cost of models that are available locally; others are checked once loaded."""
    at_hand = (model.source for model in config.models if isinstance(model.source, kit.Subject))
    return sum((Cost.of_trace(subject, config.metrics) for subject in at_hand), Cost())


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Measure every model on the same input, one after the other, and put them side by side."""
    curves = tuple(
        _measured(model, config, on_part) for model, on_part in kit.tracked(config.models, on_step)
    )
    shared = [name for name in words.OF_TOKENS if all(name in m.table["metric"] for m in curves)]
    caption = "Each curve is one model on the same input."
    by_step = words.by_step(curves)
    drawn = () if by_step is None else by_step["metric"].unique(maintain_order=True)
    return ENTRY.result(
        config,
        title=" and ".join(curve.name for curve in curves) if len(curves) == 2 else "",
        sentences=words.sentences(curves),
        # As variants, which charts and tables put side by side; models would each have a panel.
        table=tables.stack(
            [
                tables.joined({curve.name: curve.table for curve in curves}),
                *([] if by_step is None else [by_step]),
            ]
        ),
        about={
            "input": "; ".join(dict.fromkeys(curve.read for curve in curves if curve.read)),
            "weights": {curve.name: curve.weights for curve in curves if curve.weights},
        },
        headline=words.headline(curves),
        warnings=words.warnings(curves),
        listings=words.listings(curves),
        drawings=(
            *(kit.Drawing("by_setting", metric=metric) for metric in drawn),
            kit.Drawing("by_layer", caption, options={"metrics": shared}),
        ),
        shown=("relative_residual",),
    )


def _measured(model: Model, config: Config, on_step: kit.OnStep) -> words.ModelCurve:
    if isinstance(model.source, Result):
        on_step(1.0)
        return _from_result(model, model.source)
    try:
        subject = _subject(model.source, config, at_init=model.at_init)
    except InputError as error:
        if model.label in str(error):
            raise
        raise InputError(f"{model.label}: {error}") from error
    if subject.check is not None and not subject.check.fits:
        raise InputError(
            f"{model.label}: {subject.check.warnings()[0].rstrip('.')}; compare it on text that "
            "all models know (--text), or on token ids (--ids)."
        )
    if config.limited:
        work = Cost.of_trace(subject, config.metrics).times(len(config.models))
        refuse_unasked(work, "--length, --samples")
    try:
        table = _traced(subject, config.metrics, on_step).table
    except InputError as error:
        raise InputError(f"{model.label}: {error}") from error
    known = subject.provenance()
    return words.ModelCurve(
        model, table, subject.check, known["input"], known["weights"], measured_here=True
    )


def _subject(
    source: str | Path | nn.Module | Loaded | kit.Subject, config: Config, *, at_init: bool
) -> kit.Subject:
    if isinstance(source, kit.Subject):
        return source
    loading: dict[str, Any] = {}
    if not isinstance(source, Loaded):
        dtype = None if config.dtype is None else getattr(torch, config.dtype)
        loading = {"device": config.device, "dtype": dtype, "tokenizer": config.tokenizer}
        loading |= {"pickled": config.pickled and not at_init, "at_init": at_init}
    return model_subject(
        source,
        config.texts,
        ids=config.ids,
        length=config.length,
        samples=config.samples,
        special_tokens=config.special_tokens,
        seed=config.seed,
        any_model=True,
        **loading,
    )


def _traced(subject: kit.Subject, metrics: Sequence[str], on_step: kit.OnStep) -> Trace:
    """A trace with the metrics of attention, or without them where it cannot be observed."""
    try:
        return subject.trace(metrics, on_step)
    except RankscopeError:
        if subject.traced is None:
            raise
        return subject.trace(words.OF_TOKENS, on_step)


def _from_result(model: Model, result: Result) -> words.ModelCurve:
    """The measurements of a result for one network: the whole one if it has ablations."""
    rows = result.table.filter(pl.col("metric").is_in(words.METRICS))
    variants = rows["variant"].unique() if "variant" in rows.columns else ()
    variant = next((name for name in _WHOLE if name in variants), None)
    rows = rows if variant is None else rows.filter(variant=variant)
    columns = [name for name in ("part", "run", "model", "variant") if name in rows.columns]
    several = columns and rows.select(columns).n_unique() > 1
    layers = "layer" in rows.columns and words.RESIDUAL in rows["metric"]
    if several or not layers:
        why = "is about several networks" if several else f"has no {words.RESIDUAL} of any layer"
        raise InputError(
            f"{model.label} {why}, so it cannot be compared; give a result of trace or diagnose."
        )
    read, weights = (str(result.provenance.get(key, "")) for key in ("input", "weights"))
    return words.ModelCurve(model, rows.drop(columns), read=read, weights=weights)


@checked
def compare(
    models: Mapping[str, Source] | Sequence[Source],
    inputs: "Inputs | None" = None,
    *,
    length: int | None = None,
    samples: int = 32,
    special_tokens: bool = True,
    seed: int = 0,
    tokenizer: Any = None,
    pickled: bool = False,
    device: str | None = None,
    dtype: Dtype | None = None,
    on_step: kit.OnStep | None = None,
) -> kit.Result:
    """Compare models on the same texts: which loses the differences between tokens, and where.

    >>> from transformers import BertConfig, BertModel
    >>> shape = dict(vocab_size=50, hidden_size=8, num_attention_heads=2, intermediate_size=8)
    >>> made = {f"{n} layers": BertModel(BertConfig(**shape, num_hidden_layers=n)) for n in (1, 2)}
    >>> compare(made, [[1, 2, 3, 4]]).listings[0].columns[:3]
    ('model', 'layers', 'input')

    Each of ``models`` is a folder, a Hub id, either with ``@init`` behind it for the same
    architecture at initialisation, a model or what ``rankscope.load`` returns, a ``Subject``, or a
    ``Result`` of ``trace`` or ``diagnose`` or its ``.parquet`` file. A folder with checkpoints of a
    training stands for all of them, ``FOLDER@1200`` for that of one step. The other options are
    those of ``rankscope.load`` and of what is read: ``inputs`` are texts or token ids, by default
    the first ``samples`` bundled passages, cut to ``length`` tokens: 128 unless given, or as many
    as a model has positions for.
    """
    read = ReadInputs(None, None, None) if inputs is None else read_inputs(inputs)
    if read.tensor is not None and read.ids is None:
        raise InputError(
            "models are compared on texts or token ids, not on hidden states; for these, compare "
            "results: compare([trace(model, x).result, ...])."
        )
    config = Config(
        seed,
        compared_models(models),
        read.texts,
        None if read.ids is None else tuple(tuple(row) for row in read.ids),
        samples,
        length,
        special_tokens,
        tokenizer,
        pickled,
        device,
        dtype,
    )
    return run(config, on_step or kit.silent)


@checked
def compared_models(models: Mapping[str, Source] | Sequence[Source]) -> tuple[Model, ...]:
    """Models to compare, with distinct labels.

    >>> [model.label for model in compared_models(["models/mini", "models/mini@init"])]
    ['mini', 'mini at initialisation']

    A folder that holds checkpoints of a training (``checkpoint-100``, ``step_200``, …) stands for
    all of them, in the order of their steps, and for itself if it also holds a model;
    ``FOLDER@100`` is one of them, a file ``….parquet`` the result in it. Keys of a mapping are
    labels.
    """
    named = models.items() if isinstance(models, Mapping) else [("", model) for model in models]
    listed = [model for label, source in named for model in _of(label, source)]
    if not listed:
        raise InputError("there is nothing to compare; name two or more models or results.")
    if len(listed) < 2:
        alone = listed[0].label
        raise InputError(f"{alone} alone cannot be compared; name another, or its {INIT}.")
    several = len({model.training for model in listed if model.step is not None}) > 1
    labelled: dict[str, Model] = {}
    for model in _in_order(listed):
        label = model.label
        if several and model.step is not None and label == Path(str(model.source)).name:
            label = f"{Path(model.training).name}/{label}"
        label = free_name(label, labelled)
        labelled[label] = replace(model, label=label)
    return tuple(labelled.values())


def _of(label: str, source: Source) -> list[Model]:
    """The models of one source: several if it is a folder of checkpoints."""
    if isinstance(source, Result):
        return [Model(source, label=label or source.title)]
    if not isinstance(source, str | Path):
        called = type(source).__name__ if isinstance(source, nn.Module) else source.name
        return [Model(source, label=label or called)]
    written = str(source)
    if written.endswith(".parquet"):
        return [Model(results.read(written), label=label or Path(written).stem)]
    if written.endswith(INIT):
        inner = written.removesuffix(INIT)
        called = label or f"{Path(inner).name} at initialisation"
        return [Model(inner, at_init=True, label=called)]
    folder = Path(resolve_checkpoint(written, latest=False)).expanduser()
    if not folder.is_dir():
        return [Model(written, label=label or folder.name)]
    checkpoints = checkpoints_in(folder)
    if not checkpoints:
        return [_checkpoint(label, folder)]
    models = [_checkpoint("", path) for path in checkpoints]
    if holds_model(folder):
        called = f"{folder.name}, final"
        models.append(Model(str(folder), label=called, training=str(folder)))
    return models


def _checkpoint(label: str, folder: Path) -> Model:
    label = label or folder.name or folder.resolve().name
    step = step_of(folder)
    training = "" if step is None else str(folder.resolve().parent)
    return Model(str(folder), label=label, step=step, training=training)


def _in_order(models: Sequence[Model]) -> list[Model]:
    """Sort the checkpoints of one training by step; a shell sorts them by name."""
    by_step: dict[str, list[Model]] = {}
    for model in sorted(models, key=lambda model: model.step or 0):
        if model.step is not None:
            by_step.setdefault(model.training, []).append(model)
    return [model if model.step is None else by_step[model.training].pop(0) for model in models]
