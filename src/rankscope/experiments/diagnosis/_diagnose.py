"""From a subject to everything a diagnosis says; each chapter is measured once and told once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl
import torch

from rankscope import tables
from rankscope.core.tracing import refuse_broken
from rankscope.errors import RankscopeError
from rankscope.experiments import kit, variants
from rankscope.experiments.diagnosis import _answer, _kinds, _probes
from rankscope.experiments.diagnosis._blame import Loss
from rankscope.experiments.diagnosis._layers import layer_part, trace_ablations
from rankscope.experiments.diagnosis._measure import Measured, counted_tokens, measure, real_tokens
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
from rankscope.experiments.diagnosis._usable import present, usable
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
    warnings: tuple[str, ...] = ()


def diagnose_subject(
    subject: kit.Subject, reading: variants.Reading, seed: int, on_step: kit.OnStep
) -> Diagnosis:
    """Measure, judge, and put into words."""
    on_pass, on_context, on_reference, on_ablation, *on_others = kit.parts(
        on_step, 4, 3, 3, 3, 3, 2, 4, 6, 2
    )
    on_paths, on_core, on_bounds, on_advice, on_remedies = on_others
    refuse_broken(subject.network, list(subject.network.blocks))
    subject, warnings = usable(subject)
    measured = measure(subject, on_pass)
    read = reading_part(subject.check, *subject.x.shape[:2])
    if subject.check is not None and not subject.check.fits:
        said = (
            "Most tokens are unknown to the tokeniser, so whatever was measured is not about text."
        )
        return Diagnosis(_answer.UNFIT, (said,), (), (read,), rows(measured), {}, warnings)
    few = first_samples(subject, _FEW)
    found, loss = judge(few, measured, on_context)
    reference = references(few, seed, on_reference)
    ablations = trace_ablations(few, reading, on_ablation)
    paths = path_chapter(subject, on_paths)
    core = core_chapter(subject, on_core)
    bounds = bound_chapter(subject, on_bounds)
    advice = advice_chapter(subject, seed, on_advice)
    if found[0].fate != "holds":
        tried = remedies(first_samples(subject, SAMPLES), on_remedies)
        listings = (tried, *advice.part.listings)
        advice = replace(advice, part=replace(advice.part, listings=listings))
    similar = similarity_rows(subject, loss.layer)
    labels = _labels(subject)
    repeated = _probes.repeated_last(few)
    curves = reference.table.with_columns(pl.lit(STATES).alias("part"))
    others = [each.table for each in (paths, core, bounds, advice) if each.table is not None]
    table = tables.stack([rows(measured), curves, ablations, similar, *others])
    parts = (
        layer_part(measured, loss, reference, ablations),
        mixing_part(measured, paths.table, repeated, labels),
        spectrum_part(measured),
        *(each.part for each in (paths, core, bounds, advice)),
        read,
    )
    return Diagnosis(
        _answer.headline(found),
        _answer.sentences(found, loss, _beside(measured, reference)),
        found,
        tuple(present(part, table) for part in parts),
        table,
        _key_figures(measured),
        warnings,
    )


def judge(
    few: kit.Subject, measured: Measured, on_step: kit.OnStep
) -> tuple[tuple[Finding, ...], Loss]:
    """Every kind of collapse, by its rule, and where most is lost.

    ``few`` are the samples of which less is read, too.
    """
    why_not = f"the texts have fewer than {_probes.LEAST_TOKENS} tokens, or their tokens are alike"
    try:
        exponents = _probes.width_exponents(*_probes.dispersion_by_context(few, on_step))
    except RankscopeError as error:  # a mask may be for one length alone
        exponents = torch.full((len(few.x),), torch.nan)
        why_not = str(error).rstrip(".")
    depth, loss = _kinds.depth(measured, torch.finfo(few.x.dtype).eps)
    found = (
        depth,
        _kinds.width(exponents, why_not),
        _kinds.entropy(measured),
        _kinds.layers(measured),
        _kinds.last_token(measured),
        _kinds.cone(measured),
    )
    return found, loss


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


def _labels(subject: kit.Subject) -> Sequence[str]:
    """The tokens of the first sample that count as words, or as numbers where none are known."""
    batch = first_samples(subject, 1).batches()[0]
    counted = counted_tokens(batch)[0][real_tokens(batch)[0]].tolist()
    words = [str(place) for place in range(len(counted))]
    if subject.check is not None:
        words = list(subject.check.tokens[0])
    return [word for word, counts in zip(words, counted, strict=True) if counts]
