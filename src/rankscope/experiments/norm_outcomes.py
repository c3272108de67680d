"""The outcomes of the LayerNorm study, sample by sample, in words, and for which settings."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import polars as pl

from rankscope.core.theory import UNEVEN, Law, law, levels_off
from rankscope.experiments import kit
from rankscope.experiments.depths import FORMATS, RELATIVE, RELATIVE_DISPERSION, SCALED
from rankscope.experiments.norm_cases import NormSetting
from rankscope.numerals import plural, power_of_ten

STABLE, APART, SHARE = "stable_rank", "still_apart", "share_still_apart"
"""Metrics: of every layer, of every run of the search (1 or 0), of all its runs together."""
FRESH, REPEATED = "fresh layers", "one layer repeated"
"""Variants of the search."""
# Tokens that differ by more than this part of their size: far above the noise of any format.
DIFFERENT = 1e-2
POLES = 1.05  # a stable rank below this is rank one with a little beside it
_SMALL = math.log10(DIFFERENT)


@dataclass(frozen=True)
class NormOutcome:
    """One case, sample by sample: how it ends by format (scaled, float64, float32)."""

    layers: int
    # What the samples follow whose residual truly goes on shrinking, by their median, if any.
    law: Law | None
    last: Mapping[str, tuple[float, ...]]
    stops: Mapping[str, tuple[bool, ...]]
    # Stable ranks in float64 of the samples that truly stay apart; 1 means two opposite poles.
    ranks: tuple[float, ...]
    apart_for: tuple[int, ...]  # the last layer after which each sample's tokens still differ

    @property
    def staying(self) -> int:
        """How many samples truly stay apart."""
        return sum(self.stops[SCALED])

    @property
    def samples(self) -> int:
        """How many there are."""
        return len(self.stops[SCALED])


def outcomes(table: pl.DataFrame) -> dict[str, NormOutcome]:
    """How every case of a study's table ends."""
    dispersions = table.filter(metric=RELATIVE_DISPERSION)
    ranks = table.filter(metric=STABLE, variant="float64")
    return {
        name: _outcome(dispersions.filter(model=name), ranks.filter(model=name))
        for name in dispersions["model"].unique(maintain_order=True).to_list()
    }


def high_ranks(outcomes: Mapping[str, NormOutcome]) -> int:
    """How many samples stay apart with more than one direction left."""
    return sum(rank >= POLES for outcome in outcomes.values() for rank in outcome.ranks)


def domain(outcomes: Mapping[str, NormOutcome], settings: Mapping[str, NormSetting]) -> str:
    """In which cases tokens stay apart, and what these have in common."""
    every = [name for name, outcome in outcomes.items() if outcome.staying == outcome.samples]
    some = [name for name, outcome in outcomes.items() if 0 < outcome.staying < outcome.samples]
    if not every and not some:
        return f"Tokens collapse in every sample of all {len(outcomes)} cases."
    common = traits([settings[name] for name in (*every, *some)], [settings[n] for n in outcomes])
    return (
        f"Tokens collapse in every sample of {len(outcomes) - len(every) - len(some)} of the "
        f"{len(outcomes)} cases; they stay apart in some samples of "
        f"{plural(len(some), 'case')} and in all samples of {len(every)}{common}."
    )


def poles(outcomes: Mapping[str, NormOutcome]) -> Iterator[str]:
    """How many of the samples that stay apart have more than one direction left."""
    ranks = [rank for outcome in outcomes.values() for rank in outcome.ranks]
    if not ranks:
        return
    yield (
        f"Samples that stay apart: {len(ranks)}, of which {len(ranks) - high_ranks(outcomes)} with "
        f"tokens on two opposite poles, ±x (stable rank below {POLES:g}): different, but of rank "
        "one."
    )


def stall(outcomes: Mapping[str, NormOutcome]) -> Iterator[str]:
    """How long tokens stayed apart before they collapsed after all, at most."""
    late = {
        name: max(
            (
                n
                for n, last in zip(outcome.apart_for, outcome.last[SCALED], strict=True)
                if last <= _SMALL
            ),
            default=0,
        )
        for name, outcome in outcomes.items()
    }
    if any(late.values()):
        name = max(late, key=lambda case: late[case])
        yield (
            f"A plateau is not a limit: in the case {name} tokens still differed after "
            f"{late[name]} of {outcomes[name].layers} layers, and then collapsed."
        )


def noise(outcomes: Mapping[str, NormOutcome]) -> str:
    """How often plain formats would have called a collapse stopped."""
    true = [stops for outcome in outcomes.values() for stops in outcome.stops[SCALED]]
    wrong = []
    for format_ in FORMATS:
        plain = [stops for outcome in outcomes.values() for stops in outcome.stops[format_]]
        count = sum(seems and not stays for seems, stays in zip(plain, true, strict=True))
        wrong.append(f"{format_} in {count}")
    return (
        f"Plain formats alone would report that it stops, {' and '.join(wrong)} of the "
        f"{true.count(False)} samples in which it continues ({len(outcomes)} cases, "
        f"{len(true)} samples in all)."
    )


@dataclass(frozen=True)
class Searched:
    """One setting of the search: in how many of its runs the tokens are still apart."""

    model: str
    setting: NormSetting
    runs: int
    apart: int
    rank: float  # the median stable rank of the runs still apart; NaN if there are none


def search_counts(summary: pl.DataFrame, sweeps: Mapping[str, NormSetting]) -> list[Searched]:
    """What the search counted, setting by setting."""
    if "setting" not in summary.columns:
        return []
    labels = ("model", "variant", "setting")
    apart, ranks = (summary.filter(metric=metric) for metric in (APART, f"{STABLE}_apart"))
    rank = {(*label,): value for *label, value in ranks.select(*labels, "median").iter_rows()}
    return [
        Searched(
            model,
            replace(sweeps[model], logits=logits, shared=variant == REPEATED),
            count,
            round(count * mean),
            rank.get((model, variant, logits), math.nan),
        )
        for model, variant, logits, count, mean in apart.select(
            *labels, "count", "mean"
        ).iter_rows()
    ]


def search_domain(searches: Sequence[Searched], layers: int) -> Iterator[str]:
    """In which settings of the search most runs, or some, are still apart."""
    if not searches:
        return
    yield (
        f"A search over {len(searches)} settings, each with "
        f"{max(searched.runs for searched in searches)} runs of {layers} layers, counts the runs "
        "in which tokens still differ by a hundredth of their size at the end."
    )
    most = [searched.setting for searched in searches if 2 * searched.apart > searched.runs]
    ranks = [searched.rank for searched in searches if searched.apart]
    rank = f"; their median stable rank is {median(ranks):.2f}" if ranks else ""
    yield (
        f"At least one run is still apart in {sum(searched.apart > 0 for searched in searches)} of "
        f"{len(searches)} settings; more than half of the runs in {len(most)}"
        f"{traits(most, [searched.setting for searched in searches])}; all runs in "
        f"{sum(searched.apart == searched.runs for searched in searches)}{rank}."
    )


def traits(inside: Sequence[NormSetting], everywhere: Sequence[NormSetting]) -> str:
    """What sets some settings apart from all that were tried, as a clause; empty if nothing does.

    >>> traits([NormSetting(width=4)], [NormSetting(width=4), NormSetting(width=8)])
    ', always with 4 features'
    """
    if not inside:
        return ""
    clauses = []
    for name in _NOUNS:
        values, tried = (
            [getattr(setting, name) for setting in group] for group in (inside, everywhere)
        )
        above, below = min(values) > min(tried), max(values) < max(tried)
        if min(values) == max(values) and (above or below):
            clauses.append(_in_words(name, values[0]))
        else:
            clauses += [f"{_in_words(name, min(values))} or more"] * above
            clauses += [f"{_in_words(name, max(values))} or less"] * below
    for name in _CHOICES:
        options = {getattr(setting, name) for setting in inside}
        if len(options) == 1 and options < {getattr(setting, name) for setting in everywhere}:
            clauses.append(_in_words(name, options.pop()))
    return f", always with {', '.join(clauses)}" if clauses else ""


_NOUNS = {"tokens": "token", "width": "feature", "heads": "head", "logits": "logits"}
_CHOICES = ("mask", "shared")


def _in_words(name: str, value: Any) -> str:
    """A setting's field: ``4 features``, ``logits × 16``, ``full mask``."""
    if name == "mask":
        return f"{value} mask"
    if name == "shared":
        return REPEATED if value else FRESH
    if name == "logits":
        return f"logits × {value:g}"
    return plural(value, _NOUNS[name])


def _outcome(rows: pl.DataFrame, stable_ranks: pl.DataFrame) -> NormOutcome:
    """From the relative dispersions of one case, and its stable ranks."""
    curves: dict[str, list[list[float]]] = {}
    for part in rows.partition_by("variant", "sample", maintain_order=True):
        curves.setdefault(part["variant"][0], []).append(part.sort("layer")["value"].to_list())
    stops = {
        form: tuple((stays if form == SCALED else levels_off)(curve) for curve in by_sample)
        for form, by_sample in curves.items()
    }
    true, stopped = curves[SCALED], stops[SCALED]
    going = [curve for curve, stop in zip(true, stopped, strict=True) if not stop]
    last = stable_ranks.filter(pl.col("layer") == pl.max("layer")).sort("sample")
    return NormOutcome(
        len(true[0]) - 1,
        law([*map(median, zip(*going, strict=True))], UNEVEN) if going else None,
        {form: tuple(curve[-1] for curve in by_sample) for form, by_sample in curves.items()},
        stops,
        tuple(rank for rank, stop in zip(last["value"].to_list(), stopped, strict=True) if stop),
        tuple(
            max((layer for layer, log10 in enumerate(curve) if log10 > _SMALL), default=0)
            for curve in true
        ),
    )


def stays(log10: Sequence[float]) -> bool:
    """Whether tokens truly stay apart: their residual is level, and not small.

    Derived: near rank one a layer is a linear map of the deviations, or smaller (see the study), so
    it has no level at which to stop; a small residual is level only by chance, for a few layers.
    """
    return levels_off(log10) and log10[-1] > _SMALL


def some_stay(table: pl.DataFrame) -> bool:
    """Whether any sample of a trace (Frobenius norm) stays apart, as far as its layers show."""
    curves = table.filter(metric=RELATIVE).sort("layer").partition_by("sample")
    return any(stays(curve["value"].to_list()) for curve in curves)


NOTE = (
    "Stay apart: in how many samples tokens truly do, and the median of their stable ranks; "
    "the law is that of the others. In the end: the relative dispersion of all samples, in scaled "
    "arithmetic."
)


def list_cases(title: str, ends: Mapping[str, NormOutcome], note: str = NOTE) -> kit.Listing:
    """A row for each case: who stays apart, the law of the rest, and where they end."""
    rows = []
    for name, outcome in ends.items():
        rank = f", rank {median(outcome.ranks):.2f}" if outcome.ranks else ""
        low, high = (power_of_ten(end(outcome.last[SCALED])) for end in (min, max))
        rows.append(
            (
                name,
                outcome.layers,
                f"{outcome.staying} of {outcome.samples}{rank}",
                None if outcome.law is None else outcome.law.name,
                low if low == high else f"{low} to {high}",
            )
        )
    columns = ("case", "layers", "stay apart", "law", "in the end")
    return kit.Listing(title, columns, tuple(rows), note)
