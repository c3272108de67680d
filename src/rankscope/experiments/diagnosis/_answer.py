"""The answer: a headline, and two or three sentences with the figures they rest on."""

from collections.abc import Sequence

from rankscope.experiments.diagnosis._blame import Loss
from rankscope.experiments.diagnosis._kinds import CONE
from rankscope.numerals import plural, sentence_case
from rankscope.results import Finding, Headline, Tone

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
    name = finding.kind
    if finding.kind == CONE.name:
        name = "the tokens lie in a cone"
    elif finding.fate == "slow":
        name = f"{name} under way"
    partly = ""
    if finding.found_in < finding.samples:
        partly = f" in {finding.found_in} of {plural(finding.samples, 'sample')}"
    where = f", layer {finding.layer}" if finding.layer and finding.kind != CONE.name else ""
    part = f" ({finding.part})" if finding.part and where else ""
    return f"{name}{where}{part}{partly}"
