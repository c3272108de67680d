"""What the LayerNorm study's table says: sample by sample, in words, and for which settings."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import polars as pl

from rankscope.core.theory import UNEVEN, Law, law, levels_off
from rankscope.experiments import kit
from rankscope.experiments.depths import FORMATS, RELATIVE, RELATIVE_DISPERSION, SCALED
from rankscope.experiments.norm_cases import Setting
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


def high_ranks(found: Mapping[str, NormOutcome]) -> int:
    """How many samples stay apart with more than one direction left."""
    return sum(rank >= POLES for one in found.values() for rank in one.ranks)


def domain(found: Mapping[str, NormOutcome], settings: Mapping[str, Setting]) -> str:
    """In which cases tokens stay apart, and what these have in common."""
    every = [name for name, one in found.items() if one.staying == one.samples]
    some = [name for name, one in found.items() if 0 < one.staying < one.samples]
    if not every and not some:
        return f"Tokens collapse in every sample of all {len(found)} cases."
    common = traits([settings[name] for name in (*every, *some)], [settings[n] for n in found])
    return (
        f"Tokens collapse in every sample of {len(found) - len(every) - len(some)} of the "
        f"{len(found)} cases; they stay apart in some samples of "
        f"{plural(len(some), 'case')} and in all samples of {len(every)}{common}."
    )


def poles(found: Mapping[str, NormOutcome]) -> Iterator[str]:
    """How many of the samples that stay apart have more than one direction left."""
    ranks = [rank for one in found.values() for rank in one.ranks]
    if not ranks:
        return
    yield (
        f"Samples that stay apart: {len(ranks)}, of which {len(ranks) - high_ranks(found)} with "
        f"tokens on two opposite poles, ±x (stable rank below {POLES:g}): different, and yet of "
        "rank one."
    )


def stall(found: Mapping[str, NormOutcome]) -> Iterator[str]:
    """How long tokens stayed apart before they collapsed after all, at most."""
    late = {
        name: max(
            (n for n, last in zip(one.apart_for, one.last[SCALED], strict=True) if last <= _SMALL),
            default=0,
        )
        for name, one in found.items()
    }
    if any(late.values()):
        name = max(late, key=lambda each: late[each])
        yield (
            f"A level stretch proves nothing: in the case {name} tokens still differed after "
            f"{late[name]} of {found[name].layers} layers, and then collapsed."
        )


def noise(found: Mapping[str, NormOutcome]) -> str:
    """How often plain formats would have called a collapse stopped."""
    true = [stops for one in found.values() for stops in one.stops[SCALED]]
    wrong = []
    for format_ in FORMATS:
        plain = [stops for one in found.values() for stops in one.stops[format_]]
        count = sum(seems and not stays for seems, stays in zip(plain, true, strict=True))
        wrong.append(f"{format_} in {count}")
    return (
        f"Plain formats alone would have said that it stops, {' and '.join(wrong)} of the "
        f"{true.count(False)} samples in which it goes on ({len(found)} cases, {len(true)} samples "
        "in all)."
    )


@dataclass(frozen=True)
class Searched:
    """One setting of the search: in how many of its runs the tokens are still apart."""

    model: str
    setting: Setting
    runs: int
    apart: int
    rank: float  # the median stable rank of the runs still apart; NaN if there are none


def search_counts(summary: pl.DataFrame, sweeps: Mapping[str, Setting]) -> list[Searched]:
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


def search_domain(found: Sequence[Searched], layers: int) -> Iterator[str]:
    """In which settings of the search most runs, or some, are still apart."""
    if not found:
        return
    yield (
        f"A search over {len(found)} settings, each with {max(one.runs for one in found)} runs of "
        f"{layers} layers, counts the runs in which tokens still differ by a hundredth of their "
        "size at the end."
    )
    most = [one.setting for one in found if 2 * one.apart > one.runs]
    ranks = [one.rank for one in found if one.apart]
    rank = f"; their median stable rank is {median(ranks):.2f}" if ranks else ""
    yield (
        f"At least one run is still apart in {sum(one.apart > 0 for one in found)} of "
        f"{len(found)} settings; more than half of the runs in {len(most)}"
        f"{traits(most, [one.setting for one in found])}; all runs in "
        f"{sum(one.apart == one.runs for one in found)}{rank}."
    )


def traits(inside: Sequence[Setting], everywhere: Sequence[Setting]) -> str:
    """What sets some settings apart from all that were tried, as a clause; empty if nothing does.

    >>> traits([Setting(width=4)], [Setting(width=4), Setting(width=8)])
    ', always with 4 features'
    """
    if not inside:
        return ""
    clauses = []
    for name in _NOUNS:
        own, tried = ([getattr(one, name) for one in group] for group in (inside, everywhere))
        above, below = min(own) > min(tried), max(own) < max(tried)
        if min(own) == max(own) and (above or below):
            clauses.append(_in_words(name, own[0]))
        else:
            clauses += [f"{_in_words(name, min(own))} or more"] * above
            clauses += [f"{_in_words(name, max(own))} or less"] * below
    for name in _CHOICES:
        kept = {getattr(one, name) for one in inside}
        if len(kept) == 1 and kept < {getattr(one, name) for one in everywhere}:
            clauses.append(_in_words(name, kept.pop()))
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
        form: tuple((stays if form == SCALED else levels_off)(curve) for curve in each)
        for form, each in curves.items()
    }
    true, stopped = curves[SCALED], stops[SCALED]
    going = [curve for curve, stop in zip(true, stopped, strict=True) if not stop]
    last = stable_ranks.filter(pl.col("layer") == pl.max("layer")).sort("sample")
    return NormOutcome(
        len(true[0]) - 1,
        law([*map(median, zip(*going, strict=True))], UNEVEN) if going else None,
        {form: tuple(curve[-1] for curve in each) for form, each in curves.items()},
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
    for name, one in ends.items():
        rank = f", rank {median(one.ranks):.2f}" if one.ranks else ""
        low, high = (power_of_ten(end(one.last[SCALED])) for end in (min, max))
        rows.append(
            (
                name,
                one.layers,
                f"{one.staying} of {one.samples}{rank}",
                None if one.law is None else one.law.name,
                low if low == high else f"{low} to {high}",
            )
        )
    columns = ("case", "layers", "stay apart", "law", "in the end")
    return kit.Listing(title, columns, tuple(rows), note)
