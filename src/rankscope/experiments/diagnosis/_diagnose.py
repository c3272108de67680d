"""From a subject to everything a diagnosis says; each chapter is measured once and told once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl
import torch

from rankscope import tables
from rankscope.experiments import kit, variants
from rankscope.experiments.diagnosis import _answer, _kinds, _probes
from rankscope.experiments.diagnosis._blame import Loss, find_loss
from rankscope.experiments.diagnosis._layers import layer_part, trace_ablations
from rankscope.experiments.diagnosis._measure import Measured, measure
from rankscope.experiments.diagnosis._mixing import mixing_part, similarity_rows
from rankscope.experiments.diagnosis._others import (
    SAMPLES,
    advice_chapter,
    bound_chapter,
    core_chapter,
    first_samples,
    path_chapter,
)
from rankscope.experiments.diagnosis._reading import reading_part
from rankscope.experiments.diagnosis._references import References, references
from rankscope.experiments.diagnosis._remedies import remedies
from rankscope.experiments.diagnosis._rows import STATES, rows
from rankscope.experiments.diagnosis._spectrum import spectrum_part
from rankscope.results import Finding, Headline, Part

_FEW = 8
"""Samples on which other networks and other inputs are tried beside the model itself."""


@dataclass(frozen=True)
class Diagnosis:
    """All that a ``Result`` is made of."""

    headline: Headline
    sentences: tuple[str, ...]
    findings: tuple[Finding, ...]
    parts: tuple[Part, ...]
    table: pl.DataFrame
    key_figures: dict[str, float]


def diagnose_subject(
    subject: kit.Subject, reading: variants.Reading, seed: int, on_step: kit.OnStep
) -> Diagnosis:
    """Measure, judge, and put into words."""
    on_pass, on_context, on_reference, on_ablation, on_paths, on_core, on_bounds, on_advice = (
        kit.parts(on_step, 4, 3, 3, 3, 3, 2, 4, 8)
    )
    measured = measure(subject, on_pass)
    read = reading_part(subject.check, *subject.x.shape[:2])
    if subject.check is not None and not subject.check.fits:
        said = (
            "Most tokens are unknown to the tokeniser, so whatever was measured is not about text."
        )
        return Diagnosis(_answer.UNFIT, (said,), (), (read,), rows(measured), {})
    loss = find_loss(measured)
    few = first_samples(subject, _FEW)
    found = judge(few, measured, loss, on_context)
    reference = references(few, seed, on_reference)
    ablations = trace_ablations(few, reading, on_ablation)
    paths = path_chapter(subject, on_paths)
    core = core_chapter(subject, on_core)
    bounds = bound_chapter(subject, on_bounds)
    advice = advice_chapter(subject, seed, on_advice)
    if found[0].fate != "holds":
        tried = remedies(first_samples(subject, SAMPLES), kit.silent)
        advice = replace(advice, part=replace(advice.part, listings=(tried,)))
    similar, count = similarity_rows(subject, loss.layer)
    labels = _labels(subject, count)
    repeated = _probes.repeated_last(few)
    curves = reference.table.with_columns(pl.lit(STATES).alias("run"))
    others = [each.table for each in (paths, core, bounds, advice) if each.table is not None]
    return Diagnosis(
        _answer.headline(found),
        _answer.sentences(found, loss, _beside(measured, reference)),
        found,
        (
            layer_part(measured, loss, reference, ablations),
            mixing_part(measured, paths.table, repeated, labels),
            spectrum_part(measured),
            *(each.part for each in (paths, core, bounds, advice)),
            read,
        ),
        tables.stack([rows(measured), curves, ablations, similar, *others]),
        _key_figures(measured),
    )


def judge(
    few: kit.Subject, measured: Measured, loss: Loss, on_step: kit.OnStep
) -> tuple[Finding, ...]:
    """Every kind of collapse, by its rule; ``few`` are the samples of which less is read, too."""
    contexts = _probes.dispersion_by_context(few, on_step)
    exponents = None if contexts is None else _probes.width_exponents(*contexts)
    why_not = (
        f"a text has fewer than {_probes.LEAST_TOKENS} tokens"
        if contexts is None
        else "the tokens are alike up to rounding"
    )
    return (
        _kinds.depth(measured, loss, torch.finfo(few.x.dtype).eps),
        _kinds.width(exponents, len(few.x), why_not),
        _kinds.entropy(measured),
        _kinds.layers(measured),
        _kinds.last_token(measured),
        _kinds.cone(measured),
    )


def _beside(measured: Measured, reference: References) -> str:
    residual, dispersion = (
        float(measured.states[name][-1].quantile(0.5))
        for name in ("relative_residual", "relative_dispersion")
    )
    return reference.sentence(residual, dispersion)


def _key_figures(measured: Measured) -> dict[str, float]:
    typical = measured.residual.quantile(0.5, dim=-1)
    cosine = measured.states["mean_cosine"].quantile(0.5, dim=-1)
    return {
        f"lowest relative residual (layer {int(typical.argmin())})": float(typical.min()),
        "relative residual after the last layer": float(typical[-1]),
        "mean cosine after the last layer": float(cosine[-1]),
    }


def _labels(subject: kit.Subject, count: int) -> Sequence[str]:
    """The first tokens of the first sample as words, where they are known."""
    if subject.check is None or subject.measured is not None:
        return [str(place) for place in range(count)]
    return subject.check.tokens[0][:count]
