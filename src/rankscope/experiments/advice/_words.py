"""What was found, in sentences: how a design stands, what helps, what does not."""

from collections.abc import Iterator, Sequence

from rankscope.experiments.advice._standing import CRITERIA, Spread, Standing
from rankscope.experiments.advice._trial import LEAST_GAIN, Trial, helps, is_confirmed
from rankscope.numerals import plural, power_of_ten, sentence_case, short
from rankscope.results import Listing


def sentences(
    original: Trial, helping: Sequence[Trial], others: Sequence[Trial], *, draws: int
) -> tuple[str, ...]:
    """How the design stands, what helps, best first, what does not, and what is meant by it."""
    return tuple(_sentences(original, helping, others, draws))


def _sentences(
    original: Trial, helping: Sequence[Trial], others: Sequence[Trial], draws: int
) -> Iterator[str]:
    layers = original.change.spec.layers
    yield (
        f"As it is, tokens keep {_kept(original)} of their relative dispersion over "
        f"{plural(layers, 'layer')}; {_reasons(original)}."
    )
    tried = len(helping) + len(others)
    if not tried:
        yield "By these limits nothing is missing, so that no change was tried."
    elif not helping:
        why = _why_nothing(others)
        yield f"Nothing tried helps, of {plural(tried, 'change')}: {why}."
    for rank, trial in enumerate(each for each in helping if each.measured or each.failure):
        yield _advice(trial, original, first=rank == 0)
    yield (
        f"The shortfall adds up, in decades, by how much random networks break these limits: "
        f"{'; '.join(each.limit for each in CRITERIA)}. A change helps if all {draws} draws of it "
        f"lie below all of the design's as it is, and their mean by {short(LEAST_GAIN)} at least."
    )


def tried(original: Trial, helping: Sequence[Trial], others: Sequence[Trial]) -> Listing:
    """Everything that was tried, best first: its shortfall, what it keeps, and what it comes to."""
    rows = []
    for trial in [original, *helping, *others]:
        measured = trial.measured
        rows.append(
            (
                trial.change.words,
                round(trial.spread.mean, 2),
                None if measured is None else round(measured.spread.mean, 2),
                _kept(trial),
                _outcome(trial, original, sure=any(trial is each for each in helping)),
            )
        )
    return Listing(
        "What was tried on random networks of the design",
        ("change", "shortfall, predicted", "measured", "dispersion kept", "does it help?"),
        tuple(rows),
        "Shortfall in decades; 0 keeps all limits.",
    )


def _outcome(trial: Trial, original: Trial, *, sure: bool) -> str:
    if trial is original:
        return ""
    if sure and trial.measured is not None:
        return "yes, measured" if is_confirmed(trial, original) else "predicted, not confirmed"
    if sure:
        return "yes, predicted"
    return "perhaps, from a few draws" if helps(trial, original) else "no"


def _advice(trial: Trial, original: Trial, *, first: bool) -> str:
    """A change that helps, with its figures and its price."""
    lead = "The best change" if first else "Next"
    found = f"{lead}: {trial.change.words}; predicted {_told(trial.spread)}"
    price = sentence_case(trial.price.in_words(trial.change.drawback))
    if trial.measured is None:
        return f"{found}; it could not be measured ({trial.failure.rstrip('.')}). Cost: {price}."
    number = plural(len(trial.measured.shortfall), "network")
    verdict = "which confirms it" if is_confirmed(trial, original) else "which does not confirm it"
    doubt = "" if trial.agrees else ", though the figures differ"
    return (
        f"{found}, measured {_told(trial.measured.spread)} on {number}, {verdict}{doubt}; tokens "
        f"keep {_kept(trial)}, measured {_part(trial.measured)}. Cost: {price}."
    )


def _reasons(trial: Trial) -> str:
    """The shortfall and what it is made of, or that there is none."""
    if not trial.spread.high:
        return "it keeps all limits"
    means = {each: float(trial.predicted.shortfalls[each.metric].mean()) for each in CRITERIA}
    parts = [f"{each.words} ({_decades(mean)})" for each, mean in means.items() if mean > 0]
    measured = "" if trial.measured is None else f" (measured {_told(trial.measured.spread)})"
    return f"it falls short by {_told(trial.spread)}{measured}: {', '.join(parts)}"


def _why_nothing(others: Sequence[Trial]) -> str:
    if not others:
        return "there was none to try"
    best = others[0]
    return f"the best, {best.change.words}, falls short by {_told(best.spread)}"


def _kept(trial: Trial) -> str:
    return _part(trial.predicted)


def _part(standing: Standing) -> str:
    return power_of_ten(standing.kept)


def _told(spread: Spread) -> str:
    low, high = _decades(spread.low), _decades(spread.high)
    between = "" if low == high else f" ({low} to {high})"
    return f"{_decades(spread.mean)}{between}"


def _decades(value: float) -> str:
    return short(value) if value >= 0.005 else "0"
