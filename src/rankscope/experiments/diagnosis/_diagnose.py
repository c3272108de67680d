"""From a subject to the result of a diagnosis; each chapter is measured once."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl
import torch

from rankscope import tables
from rankscope.core.tracing import refuse_broken, without_cudnn_attention
from rankscope.errors import RankscopeError, UnsupportedModelError
from rankscope.experiments import kit, variants
from rankscope.experiments.diagnosis import _asked as further
from rankscope.experiments.diagnosis import _chapters as chapters
from rankscope.experiments.diagnosis import _references as references
from rankscope.experiments.diagnosis._answers import explain, repair_part, why_part
from rankscope.experiments.diagnosis._evidence import Loss, RuleEvidence
from rankscope.experiments.diagnosis._measure import STATES, ModelFigures, measure, rows
from rankscope.experiments.diagnosis._repairs import Mended, check_folder, mend, write_repaired
from rankscope.experiments.diagnosis._rules import RULES
from rankscope.experiments.diagnosis._stages import masks
from rankscope.experiments.diagnosis._texts import embedding_figures, text_rows
from rankscope.numerals import plural, sentence_case, short
from rankscope.results import Finding, Headline, Listing, Part, Tone

_MOST_TOLD: Final = 3
_FEW: Final = 8
"""Samples on which other networks and other inputs are tried beside the model itself."""


def diagnose_subject(
    subject: kit.Subject,
    lacking: variants.Parts,
    seed: int,
    on_step: kit.OnStep,
    fix: Path | None = None,
    asked: Sequence[further.Asked] = further.DEFAULT,
) -> Iterator[dict[str, Any]]:
    """Measure, judge, and put into words: the fields of a ``Result``, first of the answer alone.

    ``fix`` is where a repaired checkpoint is to be written, ``asked`` are the chapters that take
    time of their own.
    """
    if fix is not None:
        check_folder(fix, subject)
    on_answer, on_chapters = kit.parts(on_step, 16, 5 + further.weight(asked))
    if subject.traced is None:
        refuse_broken(subject.network, list(subject.network.blocks))
    else:
        refuse_broken(subject.traced.model, list(subject.traced.stack))
    subject, warnings = references.usable(subject)
    read = chapters.reading_part(subject)
    if subject.check is not None and not subject.check.fits:
        why = (
            "Most tokens are unknown to the tokeniser, so the measurements say nothing about text."
        )
        yield {
            "headline": Headline("No verdict: the text does not fit the model"),
            "sentences": (why,),
            "parts": (read,),
            "table": rows(measure(subject, on_step)),
            "warnings": warnings,
        }
        return
    with _without_plans(subject):
        diagnosed = _diagnose(subject, seed, on_answer, design=further.is_asked("design", asked))
    answer = {**_answer(diagnosed, fix), "warnings": warnings}
    yield {**answer, "table": rows(diagnosed.measured)}
    with _without_plans(subject):
        parts, table = _chapters(diagnosed, read, lacking, seed, asked, on_chapters)
    yield {**answer, "parts": tuple(_drawable(part, table) for part in parts), "table": table}


def _without_plans(subject: kit.Subject) -> AbstractContextManager[None]:
    """On a GPU, cuDNN plans its attention for every new shape, for 0.06 to 1.3 s each, and a
    diagnosis has a dozen; the other kernels of PyTorch are about as fast, and need no plan."""
    return without_cudnn_attention() if subject.x.is_cuda else nullcontext()


@dataclass(frozen=True, eq=False)
class _Diagnosed:
    """What the answer is made of, before anything is put into words or any chapter has run.

    ``few`` are the first samples of the ``subject``, ``twin`` its untrained twin and ``fresh`` what
    was measured of it; ``reference`` are random networks by layer, and ``missing`` why any is
    missing. ``remedies`` are changes of the structure that were tried.
    """

    subject: kit.Subject
    few: kit.Subject
    measured: ModelFigures
    twin: kit.Subject | None
    fresh: ModelFigures | None
    findings: tuple[Finding, ...]
    loss: Loss
    mended: Mended
    reference: pl.DataFrame
    missing: tuple[str, ...]
    remedies: Listing | None


def _diagnose(subject: kit.Subject, seed: int, on_step: kit.OnStep, *, design: bool) -> _Diagnosed:
    """Measure, judge by rules, find causes and repairs; with the ``design`` also its remedies."""
    on_pass, on_context, on_mend, on_reference, on_remedies = kit.parts(on_step, 4, 3, 4, 3, 2)
    measured = measure(subject, on_pass)
    few = references.first_samples(subject, _FEW)
    twin, no_twin = references.untrained(subject, seed)
    fresh = None if twin is None else measured_of(twin)
    findings, loss = judge(few, measured, on_context, fresh)
    mended = _mend(subject, measured.of_samples(torch.arange(len(few.x))), fresh, on_mend)
    findings = tuple(explain(finding, mended) for finding in findings)
    reference, missing = references.random_networks(few, twin, seed, on_reference)
    missing += [f"There is no untrained twin: {no_twin}."] if no_twin else []
    remedies = None
    if design and findings[0].fate != "absent":
        some = references.first_samples(subject, further.SAMPLES)
        with suppress(UnsupportedModelError):  # no network can be drawn; the chapter says so
            remedies = references.remedies(some, on_remedies)
    return _Diagnosed(
        subject,
        few,
        measured,
        twin,
        fresh,
        findings,
        loss,
        mended,
        reference,
        tuple(missing),
        remedies,
    )


def _answer(diagnosed: _Diagnosed, fix: Path | None) -> dict[str, Any]:
    """The answer in words; what is repaired is written into the folder ``fix``."""
    measured, findings = diagnosed.measured, diagnosed.findings
    lowest, at = measured.lowest
    held_against = references.beside(diagnosed.reference, measured)
    answers = _answers(findings, diagnosed.loss.sentence, held_against, diagnosed.remedies)
    if fix is not None:
        answers.append(("what now", write_repaired(diagnosed.mended, diagnosed.subject, fix)))
    return {
        "headline": _headline(findings),
        "sentences": tuple(sentence for _, sentence in answers),
        "labels": tuple(label for label, _ in answers),
        "findings": findings,
        "key_figures": {
            "lowest_relative_residual": lowest,
            "lowest_at_layer": at,
            "relative_residual_after_last_layer": float(measured.typical_residual[-1]),
            "mean_cosine_after_last_layer": float(measured.states["mean_cosine"][-1].quantile(0.5)),
        },
    }


def _chapters(
    diagnosed: _Diagnosed,
    read: Part,
    lacking: variants.Parts,
    seed: int,
    asked: Sequence[further.Asked],
    on_step: kit.OnStep,
) -> tuple[Sequence[Part], pl.DataFrame]:
    """What a page has beside the answer, and all numbers."""
    on_texts, on_ablation, on_further = kit.parts(on_step, 2, 3, further.weight(asked))
    subject, few, measured = diagnosed.subject, diagnosed.few, diagnosed.measured
    twin = None if diagnosed.twin is None else references.usable(diagnosed.twin)[0]
    embedded = embedding_figures(subject, twin, measured, diagnosed.fresh)
    on_texts(1.0)
    ablations: pl.DataFrame | str
    try:
        ablations = chapters.trace_ablations(few, lacking, on_ablation)
    except UnsupportedModelError as error:  # of a model that is not converted
        ablations = str(error)
    answered = further.answer(asked, subject, seed, on_further)
    if diagnosed.remedies is not None:
        part, advised = answered["design"]
        listings = (diagnosed.remedies, *part.listings)
        answered["design"] = replace(part, listings=listings), advised
    reference = diagnosed.reference.with_columns(pl.lit(STATES).alias("part"))
    table = tables.stack(
        [
            rows(measured),
            *text_rows(measured, diagnosed.fresh),
            *(() if embedded is None else [embedded.rows()]),
            _named_for(reference, few, subject),
            *([] if isinstance(ablations, str) else [_named_for(ablations, few, subject)]),
            chapters.similarity_rows(subject, diagnosed.loss.layer),
            *(rows_of_part for _, rows_of_part in answered.values() if rows_of_part is not None),
        ]
    )
    twice, labels = references.repeated_last(few), _labels(subject)
    parts = (
        *filter(None, [why_part(diagnosed.mended), repair_part(diagnosed.mended)]),
        chapters.text_part(measured, diagnosed.fresh, embedded),
        chapters.layer_part(measured, diagnosed.loss, diagnosed.missing, ablations),
        chapters.mixing_part(measured, answered.get("paths", (None, None))[1], twice, labels),
        chapters.spectrum_part(measured),
        *(part for part, _ in answered.values()),
        replace(read, sentences=(*read.sentences, *further.unasked(answered))),
    )
    return parts, table


def _named_for(table: pl.DataFrame, few: kit.Subject, subject: kit.Subject) -> pl.DataFrame:
    """Curves of a few samples say so in their names: they stand beside those of all."""
    if len(few.x) == len(subject.x):
        return table
    of = pl.format("{}, first " + plural(len(few.x), "sample"), "variant")
    return table.with_columns(
        pl.when(pl.col("sample").max().over("variant") < len(few.x)).then(of).otherwise("variant")
    )


def examine(subject: kit.Subject, seed: int = 0) -> Mended:
    """The cheap half of a diagnosis: figures, rules, causes and repairs, on a few samples.

    Width collapse, which needs the network to read less, is not asked about.
    """
    (twin, _), measured = references.untrained(subject, seed), measured_of(subject)
    fresh = None if twin is None else measured_of(twin)
    return _mend(subject, measured, fresh, kit.silent)


def _mend(
    subject: kit.Subject, measured: ModelFigures, fresh: ModelFigures | None, on_step: kit.OnStep
) -> Mended:
    """The causes of the findings, and their repairs; figures are of few samples."""
    judge_one = partial(judge_few, subject, fresh)
    return mend(subject, measured, fresh, judge_one, _first, on_step)


def measured_of(subject: kit.Subject) -> ModelFigures:
    """What a diagnosis measures on its first samples."""
    return measure(_first(subject), kit.silent)


def _first(subject: kit.Subject) -> kit.Subject:
    return references.first_samples(references.usable(subject)[0], _FEW)


def judge_few(
    subject: kit.Subject, twin: ModelFigures | None, measured: ModelFigures
) -> tuple[Finding, ...]:
    """Every rule that needs no shorter texts."""
    nothing = torch.full_like(measured.tokens, torch.nan, dtype=torch.float64)
    evidence = _evidence(subject, measured, nothing, "shorter texts were not read", twin)
    return tuple(rule.finding(evidence) for rule in RULES)


def _evidence(
    subject: kit.Subject,
    measured: ModelFigures,
    exponents: torch.Tensor,
    why_not: str,
    twin: ModelFigures | None,
) -> RuleEvidence:
    epsilon = torch.finfo(subject.x.dtype).eps
    if subject.traced is not None:
        causal = bool(measured.causal)
    else:
        causal = subject.network.is_causal(subject.x.shape[1], subject.x.device)
    return RuleEvidence(measured, exponents, why_not, epsilon, twin, causal)


def judge(
    few: kit.Subject, measured: ModelFigures, on_step: kit.OnStep, twin: ModelFigures | None = None
) -> tuple[tuple[Finding, ...], Loss]:
    """Every kind of collapse, by its rule, and where most is lost.

    ``few`` are the samples of which less is read, too; ``twin`` is of the untrained twin.
    """
    least = references.LEAST_TOKENS
    why_not = f"the texts have fewer than {least} tokens, or their tokens are alike"
    try:
        exponents = references.width_exponents(few, measured, on_step)
    except RankscopeError as error:  # a mask may be for one length alone
        exponents = torch.full((len(few.x),), torch.nan)
        why_not = str(error).rstrip(".")
    evidence = _evidence(few, measured, exponents, why_not, twin)
    return tuple(rule.finding(evidence) for rule in RULES), evidence.loss


def _news(findings: Sequence[Finding]) -> list[Finding]:
    """The findings of the headline: present, then under way, then noted."""
    order = {"collapse": 0, "slow": 1, "noted": 2}
    news = [finding for finding in findings if finding.fate in order]
    # Stable: the kinds' own order otherwise; what weights show comes before other notes.
    news.sort(key=lambda finding: (order[finding.fate], finding.kind != "unusual weights"))
    return news[:_MOST_TOLD]


def _headline(findings: Sequence[Finding]) -> Headline:
    """The findings in a few words."""
    news = _news(findings)
    if not news:
        return Headline("No collapse", "holds")
    named = {rule.name: rule.headline for rule in RULES}
    words = []
    for finding in news:
        text = named[finding.kind]
        if not text:
            text = finding.kind + " under way" * (finding.fate == "slow")
            if finding.layer:
                text += f", layer {finding.layer}" + f" ({finding.part})" * bool(finding.part)
        if finding.found_in < finding.samples:
            text += f" in {finding.found_in} of {plural(finding.samples, 'sample')}"
        words.append(text)
    if news[0].fate == "noted":
        return Headline(f"No collapse, but {' and '.join(words)}", "holds")
    tone: Tone = "collapse" if news[0].fate == "collapse" else "slow"
    return Headline(sentence_case("; ".join(words)), tone)


def _answers(
    findings: Sequence[Finding], lost: str, held_against: str, tried: Listing | None
) -> list[tuple[str, str]]:
    """Sentences, each with the question it answers; ``tried`` are changes of the structure."""
    news = _news(findings)
    if news:
        # The headline names the others, too; their sentences follow without a label.
        labels = ["where", *[""] * (len(news) - 1)]
        answers = list(zip(labels, (finding.sentence for finding in news), strict=True))
    else:  # the first finding, on depth, has the figures
        near = [finding.sentence for finding in findings if finding.found_in]
        samples = findings[0].samples
        agree = f" All {plural(samples, 'sample')} agree." if samples > 1 else ""
        agree = f" Not all samples agree: {' '.join(near)}" if near else agree
        answers = [("where", findings[0].sentence + agree)]
    causes = [finding.cause for finding in news if finding.cause]
    # Causes and repairs of the other findings are in the chapters Why and What now.
    answers.append(("why", next(iter(causes), lost)))
    answers.append(("" if causes else "untrained", held_against))  # causes have their own
    remedies = (finding.remedy for finding in news if finding.remedy)
    answers.append(("what now", next(remedies, _without_remedy(news, tried))))
    return [(label, sentence) for label, sentence in answers if sentence]


def _without_remedy(news: Sequence[Finding], tried: Listing | None) -> str:
    """What there is to do where no finding says so: by changes of the structure, if any helped."""
    if not news or news[0].fate == "noted":
        return "No repair is needed."
    if tried is not None:
        (_, before, _), *better = tried.rows
        if not better:
            return "None of the changes of the structure that were tried with these weights helps."
        change, after, _ = better[0]
        figures = " to ".join(short(float(figure or 0), digits=2) for figure in (before, after))
        return (
            f"With {change} and the same weights, the lowest relative residual changes from "
            f"{figures}; to be useful, the model would have to be trained with this change."
        )
    return (
        "No repair of single weights helps, or none is known for this; the page lists changes of "
        "the design."
    )


def _labels(subject: kit.Subject) -> list[str]:
    """The tokens of the first sample that count as words, or as numbers where none are known."""
    real, counted = (mask[0] for mask in masks(references.first_samples(subject, 1).batches()[0]))
    flags = counted[real].tolist()
    words: Sequence[str] = [str(token) for token in range(len(flags))]
    if subject.check is not None:
        words = subject.check.tokens[0]
    return [word for word, counts in zip(words, flags, strict=True) if counts]


def _drawable(part: Part, table: pl.DataFrame) -> Part:
    """A part without drawings for which there are no rows, as of attention to one token only."""
    drawings = []
    for drawing in part.drawings:
        some = [pl.col(column).is_in(labels) for column, labels in drawing.only.items()]
        wanted = [drawing.metric] if drawing.metric else drawing.options.get("metrics", [])
        if set(wanted) <= set(table.filter(some)["metric"]):
            drawings.append(drawing)
    return replace(part, drawings=tuple(drawings))
