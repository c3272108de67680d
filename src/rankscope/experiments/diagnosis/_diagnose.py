"""From a subject to everything a diagnosis says; each chapter is measured once and told once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl
import torch

from rankscope import tables
from rankscope.core.tracing import refuse_broken
from rankscope.errors import RankscopeError
from rankscope.experiments import kit, variants
from rankscope.experiments.diagnosis import _samples
from rankscope.experiments.diagnosis._chapters import (
    layer_part,
    mixing_part,
    reading_part,
    similarity_rows,
    spectrum_part,
    trace_ablations,
)
from rankscope.experiments.diagnosis._evidence import Evidence, Loss
from rankscope.experiments.diagnosis._measure import (
    STATES,
    Measured,
    counted_tokens,
    measure,
    real_tokens,
    rows,
)
from rankscope.experiments.diagnosis._other_questions import (
    SAMPLES,
    advice_chapter,
    bound_chapter,
    core_chapter,
    path_chapter,
)
from rankscope.experiments.diagnosis._references import References, references, remedies
from rankscope.experiments.diagnosis._rules import RULES
from rankscope.experiments.diagnosis._samples import first_samples, usable
from rankscope.numerals import plural, sentence_case
from rankscope.results import Drawing, Finding, Headline, Part, Tone

UNFIT = Headline("No verdict: the text does not fit the model")
_MOST_TOLD = 3


def headline(findings: Sequence[Finding]) -> Headline:
    """What was found, in a few words; the worst first."""
    found = told(findings)
    if not found:
        return Headline("No collapse", "holds")
    words = [_in_a_few_words(each) for each in found[:_MOST_TOLD]]
    if all(each.fate == "noted" for each in found):
        return Headline(f"No collapse, but {words[0]}", "holds")
    worst: Tone = "collapse" if any(each.fate == "collapse" for each in found) else "slow"
    return Headline(sentence_case("; ".join(words)), worst)


def told(findings: Sequence[Finding]) -> list[Finding]:
    """Findings that are news, what is there before what is under way or no loss."""
    order = {"collapse": 0, "slow": 1, "noted": 2}
    bad = [each for each in findings if each.fate in order]
    return sorted(bad, key=lambda each: order[each.fate])  # stable: the kinds' own order otherwise


def sentences(findings: Sequence[Finding], loss: Loss, beside: str) -> tuple[str, ...]:
    """What was found, where most is lost and to what, and what to hold it against."""
    bad = told(findings)
    shown = [each.sentence for each in bad[:_MOST_TOLD]] or [_all_well(findings)]
    return tuple(filter(None, [*shown, loss.sentence, beside]))


def _all_well(findings: Sequence[Finding]) -> str:
    """None of them was found: the first, on depth, has the figures."""
    samples = findings[0].samples
    agree = f" All {plural(samples, 'sample')} agree." if samples > 1 else ""
    near = [each for each in findings if each.found_in]
    if near:
        agree = " Not all samples agree: " + " ".join(each.sentence for each in near)
    return findings[0].sentence + agree


def _in_a_few_words(finding: Finding) -> str:
    rule = next(rule for rule in RULES if rule.name == finding.kind)
    name = rule.headline or finding.kind
    if not rule.headline and finding.fate == "slow":
        name = f"{name} under way"
    partly = ""
    if finding.found_in < finding.samples:
        partly = f" in {finding.found_in} of {plural(finding.samples, 'sample')}"
    where = f", layer {finding.layer}" if finding.layer and not rule.headline else ""
    part = f" ({finding.part})" if finding.part and where else ""
    return f"{name}{where}{part}{partly}"


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
        return Diagnosis(UNFIT, (said,), (), (read,), rows(measured), {}, warnings)
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
    repeated = _samples.repeated_last(few)
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
        headline(found),
        sentences(found, loss, _beside(measured, reference)),
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
    why_not = f"the texts have fewer than {_samples.LEAST_TOKENS} tokens, or their tokens are alike"
    try:
        exponents = _samples.width_exponents(*_samples.dispersion_by_context(few, on_step))
    except RankscopeError as error:  # a mask may be for one length alone
        exponents = torch.full((len(few.x),), torch.nan)
        why_not = str(error).rstrip(".")
    evidence = Evidence(measured, exponents, why_not, torch.finfo(few.x.dtype).eps)
    return tuple(rule.finding(evidence) for rule in RULES), evidence.loss


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


def present(part: Part, table: pl.DataFrame) -> Part:
    """A part without drawings for which there are no rows, as of attention to one token only."""
    return replace(part, drawings=tuple(each for each in part.drawings if _drawable(each, table)))


def _drawable(drawing: Drawing, table: pl.DataFrame) -> bool:
    for column, labels in drawing.only.items():
        table = table.filter(pl.col(column).is_in(labels))
    wanted = [drawing.metric] if drawing.metric else drawing.options.get("metrics", [])
    return set(wanted) <= set(table["metric"])
