"""From a subject to the result of a diagnosis; each chapter is measured once."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl
import torch

from rankscope import tables
from rankscope.core.tracing import refuse_broken
from rankscope.errors import RankscopeError, UnsupportedModelError
from rankscope.experiments import kit, variants
from rankscope.experiments.diagnosis import _chapters as chapters
from rankscope.experiments.diagnosis import _references as references
from rankscope.experiments.diagnosis._answers import explain, repair_part, why_part
from rankscope.experiments.diagnosis._evidence import Loss, RuleEvidence
from rankscope.experiments.diagnosis._measure import STATES, ModelFigures, measure, rows
from rankscope.experiments.diagnosis._repairs import Mended, check_folder, mend, write_repaired
from rankscope.experiments.diagnosis._rules import RULES
from rankscope.experiments.diagnosis._stages import masks
from rankscope.experiments.diagnosis._texts import embedding_figures, text_rows
from rankscope.experiments.questions import advise, bounds, deep, paths
from rankscope.numerals import duration, plural, power_of_ten, sentence_case, short
from rankscope.results import Finding, Headline, Listing, Part, Tone

_MOST_TOLD: Final = 3
_FEW: Final = 8
"""Samples on which other networks and other inputs are tried beside the model itself."""
_SAMPLES: Final = 4
"""Samples for the slower questions."""
_LONGEST: Final = 12.0
"""Seconds that one of them may take; otherwise it uses one sample, or is left out."""
_ADVICE_TOKENS: Final = 32

Chapter = tuple[Part, pl.DataFrame | None]
"""A part, and the rows its drawings need."""


def diagnose_subject(
    subject: kit.Subject,
    lacking: variants.Parts,
    seed: int,
    on_step: kit.OnStep,
    fix: Path | None = None,
) -> dict[str, Any]:
    """Measure, judge, and put into words: the fields of a ``Result``.

    ``fix`` is where a repaired checkpoint is to be written.
    """
    if fix is not None:
        check_folder(fix, subject)
    on_pass, on_context, on_reference, on_ablation, *on_others = kit.parts(
        on_step, 4, 3, 3, 3, 3, 2, 4, 6, 2, 4
    )
    on_paths, on_core, on_bounds, on_advice, on_remedies, on_mend = on_others
    if subject.traced is None:
        refuse_broken(subject.network, list(subject.network.blocks))
    else:
        refuse_broken(subject.traced.model, list(subject.traced.stack))
    subject, warnings = references.usable(subject)
    measured = measure(subject, on_pass)
    read = chapters.reading_part(subject)
    if subject.check is not None and not subject.check.fits:
        why = (
            "Most tokens are unknown to the tokeniser, so the measurements say nothing about text."
        )
        return {
            "headline": Headline("No verdict: the text does not fit the model"),
            "sentences": (why,),
            "parts": (read,),
            "table": rows(measured),
            "warnings": warnings,
        }
    few = references.first_samples(subject, _FEW)
    twin, no_twin = references.untrained(subject, seed)
    fresh = None if twin is None else measured_of(twin)
    embedded = embedding_figures(subject, None if twin is None else references.usable(twin)[0])
    findings, loss = judge(few, measured, on_context, fresh)
    mended = _mend(subject, measured.of_samples(torch.arange(len(few.x))), fresh, on_mend)
    findings = tuple(explain(finding, mended) for finding in findings)
    reference, missing = references.random_networks(few, twin, seed, on_reference)
    missing += [f"There is no untrained twin: {no_twin}."] if no_twin else []
    ablations: pl.DataFrame | str
    try:
        ablations = chapters.trace_ablations(few, lacking, on_ablation)
    except UnsupportedModelError as error:  # of a model that is not converted
        ablations = str(error)
    asked = [
        _ask(
            paths, lambda some: paths.Config(some, by_head=True), subject, on_paths, "Path lengths"
        ),
        _core_chapter(subject, on_core),
        _bound_chapter(subject, on_bounds),
        _advice_chapter(subject, seed, on_advice),
    ]
    if findings[0].fate != "absent":
        part, advised = asked[-1]
        try:
            tried = references.remedies(references.first_samples(subject, _SAMPLES), on_remedies)
            asked[-1] = replace(part, listings=(tried, *part.listings)), advised
        except UnsupportedModelError:  # no network can be drawn; the chapter says so
            pass
    table = tables.stack(
        [
            rows(measured),
            *text_rows(measured, fresh),
            *(() if embedded is None else [embedded.rows()]),
            _named_for(reference.with_columns(pl.lit(STATES).alias("part")), few, subject),
            *([] if isinstance(ablations, str) else [_named_for(ablations, few, subject)]),
            chapters.similarity_rows(subject, loss.layer),
            *(rows_of_part for _, rows_of_part in asked if rows_of_part is not None),
        ]
    )
    twice = references.repeated_last(few)
    parts = (
        *filter(None, [why_part(mended), repair_part(mended)]),
        chapters.text_part(measured, fresh, embedded),
        chapters.layer_part(measured, loss, missing, ablations),
        chapters.mixing_part(measured, asked[0][1], twice, _labels(subject)),
        chapters.spectrum_part(measured),
        *(part for part, _ in asked),
        read,
    )
    lowest, at = measured.lowest
    held_against = references.beside(reference, measured)
    answers = _answers(findings, loss.sentence, held_against, asked[-1][0].listings)
    if fix is not None:
        answers.append(("what now", write_repaired(mended, subject, fix)))
    return {
        "headline": _headline(findings),
        "sentences": tuple(sentence for _, sentence in answers),
        "labels": tuple(label for label, _ in answers),
        "findings": findings,
        "parts": tuple(_drawable(part, table) for part in parts),
        "table": table,
        "key_figures": {
            "lowest_relative_residual": lowest,
            "lowest_at_layer": at,
            "relative_residual_after_last_layer": float(measured.typical_residual[-1]),
            "mean_cosine_after_last_layer": float(measured.states["mean_cosine"][-1].quantile(0.5)),
        },
        "warnings": warnings,
    }


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
        exponents = references.width_exponents(few, on_step)
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
    findings: Sequence[Finding], lost: str, held_against: str, tried: Sequence[Listing]
) -> list[tuple[str, str]]:
    """Sentences, each with the question it answers; ``tried`` are tables of changes."""
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


def _without_remedy(news: Sequence[Finding], tried: Sequence[Listing]) -> str:
    """What there is to do where no finding says so: by changes of the structure, if any helped."""
    if not news or news[0].fate == "noted":
        return "No repair is needed."
    if tried and tried[0].title == references.REMEDIES:
        (_, before, _), *better = tried[0].rows
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


def _core_chapter(subject: kit.Subject, on_step: kit.OnStep) -> Chapter:
    """Self-attention alone, in scaled arithmetic."""
    return _ask(
        deep,
        lambda some: deep.Config(_core(some)),
        subject,
        on_step,
        "The pure-attention core",
        "The same attention without skip connections, MLPs and norms, the network of the theorems "
        "of Dong et al. 2021, in scaled arithmetic, which does not underflow.",
        drawn=(0, 1),
    )


def _bound_chapter(subject: kit.Subject, on_step: kit.OnStep) -> Chapter:
    """Bounds for that core, sample by sample."""
    part, table = _ask(
        bounds,
        lambda some: bounds.Config(_core(some)),
        subject,
        on_step,
        "Bounds against measurement",
        "Bounds of the theorems for that core, compared with measurements.",
        drawn=(0, 2),
    )
    if table is None:
        return part, table
    residuals = table.filter(metric="log10_residual")
    last = residuals.filter(pl.col("layer") == pl.col("layer").max())
    names = last["variant"].unique(maintain_order=True).to_list()
    rows = []
    for (sample,), rows_of_sample in last.group_by("sample", maintain_order=True):
        values = dict(zip(rows_of_sample["variant"], rows_of_sample["value"], strict=True))
        powers = [power_of_ten(values[n], digits=3) if n in values else None for n in names]
        rows.append((sample, *powers))
    listing = Listing(
        "The residual after the last layer, sample by sample",
        ("sample", *names),
        tuple(rows),
        "Composite norm, best center. A dash: the bound does not apply to that sample.",
    )
    return replace(part, listings=(listing,)), table


def _core(subject: kit.Subject) -> kit.Subject:
    return replace(subject, network=subject.network.without("skip", "mlp", "norm"))


def _advice_chapter(subject: kit.Subject, seed: int, on_step: kit.OnStep) -> Chapter:
    """Changes of the design, tried on random networks of it."""

    def configure(first: kit.Subject) -> advise.Config:
        """On the first tokens of the first sample, because predictions have gradients here."""
        tokens = masks(first.batches()[0])[1][0].nonzero().squeeze(-1)[:_ADVICE_TOKENS]
        few = replace(first, x=first.x[:, tokens], token_mask=None)
        return advise.Config(few, confirmed=2, candidates=3, draw_seed=seed)

    part, table = _ask(
        advise,
        configure,
        subject,
        on_step,
        "The design",
        "Changes of the design on random networks: all are predicted, and the best are measured. "
        "A trained model would have to be trained again with the change.",
        at_most=1,
    )
    tried = table is not None and table["variant"].n_unique() > 1
    return part if tried else replace(part, drawings=()), table


def _ask(
    module: Any,
    configure: Callable[[kit.Subject], Any],
    subject: kit.Subject,
    on_step: kit.OnStep,
    title: str,
    opening: str = "",
    *,
    at_most: int = _SAMPLES,
    drawn: tuple[int, ...] = (0,),
) -> Chapter:
    """The answer of another question as a chapter, or the reason why it is missing."""
    for count in dict.fromkeys((min(at_most, len(subject.x)), 1)):
        try:
            config = configure(references.first_samples(subject, count))
            seconds = module.cost(config).seconds
            if seconds > _LONGEST:
                continue
            result = module.run(config, on_step)
        except RankscopeError as error:
            return Part(title, (f"Left out: {str(error).rstrip('.')}.",)), None
        return _embed(result, title, opening, drawn)
    why = f"it would take about {duration(seconds)}; run `rankscope {module.ENTRY.id}` for it"
    return Part(title, (f"Left out: {why}.",)), None


def _embed(result: kit.Result, title: str, opening: str, drawn: tuple[int, ...]) -> Chapter:
    """A whole result under one heading; its rows are kept apart by the column ``part``."""
    label = pl.lit(result.id)
    if "part" in result.table.columns:
        label = pl.concat_str([label, pl.lit(": "), pl.col("part").fill_null("")])
    table = tables.stack([result.table.with_columns(label.alias("part"))])
    every = tuple(table["part"].unique(maintain_order=True).to_list())
    drawings = []
    for drawing in (drawing for at, drawing in enumerate(result.drawings) if at in drawn):
        some = tuple(f"{result.id}: {label}" for label in drawing.only.get("part", ()))
        drawings.append(replace(drawing, only={**drawing.only, "part": some or every}))
    sentences = tuple(filter(None, [opening, *result.sentences]))
    return Part(title, sentences, result.listings, tuple(drawings)), table
