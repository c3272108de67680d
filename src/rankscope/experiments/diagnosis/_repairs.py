"""What now: the repair that fits each cause, applied to the model's weights and measured again.

Weights are exchanged and put back, never overwritten: the model is left unchanged. The effect of a
repair is measured by the figure by which each finding was judged.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from rankscope.core.theory import thresholds
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.diagnosis import _causes as causes
from rankscope.experiments.diagnosis._causes import Suspect
from rankscope.experiments.diagnosis._measure import ModelFigures, measure
from rankscope.experiments.diagnosis._texts import VECTORS, text_figures
from rankscope.experiments.diagnosis._weights import Product, Weight, is_passed_through, products
from rankscope.numerals import plural, short
from rankscope.results import Finding
from rankscope.streams import stream

_GROUPS: Final = 5
"""Parts that are tried at first; fewer in each round that follows."""
_ROUNDS: Final = 3
RESTORED: Final = 0.25
"""Share of a loss that a repair must restore to be reported."""
_ENOUGH: Final = 0.9
"""Part of what mending all of a group restores, which a single weight must restore to be named
alone."""
_TOLD: Final = 3
"""Weights of a group that are named one by one."""
_LISTED: Final = 12
_WEIGHTS: Final[Mapping[str, float]] = {"collapse": 1.0, "slow": 0.5, "noted": 0.25}
"""Weight of a restored finding, by its fate; findings of other fates are not bad."""
_DEAD: Final = 1e-3
"""Part of the usual size below which a weight cannot be rescaled, since nothing is left of it."""

_CLIPPED: Final = 3.0
"""Times the median gain at which a repair clips gains, where a few features drown the others."""

Judge = Callable[[ModelFigures], Sequence[Finding]]
Prepare = Callable[[kit.Subject], kit.Subject]
Changes = Mapping[int, tuple[nn.Parameter, Tensor]]
"""By the identity of a parameter, it and what takes its place."""


@dataclass(frozen=True)
class Cause:
    """A cause: repairing ``members`` restores what was lost.

    ``restored`` is the share of the loss that is restored, by kind of finding; ``repair`` describes
    the change, ``drawn`` is whether weights were reinitialised, and ``after`` are the figures then.
    """

    members: causes.Group
    sentence: str
    repair: str
    drawn: bool
    restored: Mapping[str, float]
    after: ModelFigures

    @property
    def layer(self) -> int:
        """Which layer it is in, from 1; 0 are the embeddings, −1 all layers alike."""
        return self.members[0].location[0]

    @property
    def paths(self) -> tuple[str, ...]:
        """Where its weights are in the original model."""
        return tuple(member.path for member in self.members)

    @property
    def part(self) -> str:
        """Which part of the layer."""
        return self.members[0].weight.part

    @property
    def changed(self) -> int:
        """How many numbers the repair changes."""
        return sum(suspect.weight.value.numel() for suspect in self.members)


@dataclass(frozen=True)
class Mended:
    """Findings, their causes, the repaired weights, and the figures measured with them.

    ``tried`` are all repairs of a single part, the best first; ``causes`` are those that were kept,
    each applied on top of the previous ones. ``twin`` are the findings of the untrained twin.
    """

    findings: tuple[Finding, ...]
    causes: tuple[Cause, ...]
    tried: tuple[Cause, ...]
    changes: Changes
    before: ModelFigures
    after: ModelFigures
    fresh: ModelFigures | None
    remaining: tuple[Finding, ...]
    """Findings after all repairs."""
    twin: tuple[Finding, ...]
    unusual: tuple[Suspect, ...]
    """The most unusual weights, causes or not."""
    products: tuple[Product, ...]
    """By layer, queries with keys and values with outputs."""


@contextmanager
def exchanged(changes: Changes, *roots: nn.Module) -> Iterator[None]:
    """Other numbers in the place of some parameters, wherever they are used; then the old ones."""
    places = [
        (module, name, changes[id(parameter)][1])
        for root in roots
        for module in root.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None and id(parameter) in changes
    ]
    originals = [(module, name, module._parameters[name]) for module, name, _ in places]
    try:
        parameters: dict[int, nn.Parameter] = {}
        for module, name, value in places:
            key = id(value)
            parameters.setdefault(key, nn.Parameter(value, requires_grad=False))
            module._parameters[name] = parameters[key]
        yield
    finally:
        for module, name, parameter in originals:
            module._parameters[name] = parameter


def health(finding: Finding, measured: ModelFigures, twin: ModelFigures | None = None) -> float:
    """The figure of a kind of collapse, turned so that larger is better; logarithms of sizes.

    Weights are unusual beside those of the ``twin``, among others.
    """

    def log(values: Tensor) -> float:
        return float(values.double().clamp_min(1e-12).log10().nanquantile(0.5))

    layer, kind = finding.layer or 0, finding.kind
    parts = [part for part in measured.sizes if part in finding.part]
    if kind == "depth collapse":
        return log(measured.common[layer:].amin(0))
    if kind == "width collapse":
        return log(measured.states["relative_dispersion"][-1])
    if kind == "entropy collapse":
        return float(measured.heads["entropy_share"].nanmean(1)[layer - 1].nanquantile(0.5))
    if kind == "layer collapse":
        return log(measured.turned.nan_to_num(nan=math.inf).amin(0))
    if kind == "merged last token":
        return log(measured.last_apart[-1])
    if kind == "cone":
        return -float(measured.states["mean_cosine"][layer:].amax(0).quantile(0.5))
    if kind == "collapse between texts":
        vector = VECTORS.index(finding.part or VECTORS[0])
        return log(text_figures(measured)["relative_dispersion"][layer, vector])
    if kind == "unusual weights":
        suspects = causes.suspects(measured.weights, () if twin is None else twin.weights)
        here = [suspect.score for suspect in suspects if suspect.weight.layer == layer]
        return -max(here, default=0.0)
    if kind == "narrow sublayer":
        here = [
            reading.figures["directions"]
            for reading in measured.weights
            if (reading.weight.layer, reading.weight.part) == (layer, finding.part)
            and is_passed_through(reading.weight)
            and "directions" in reading.figures
        ]
        return math.log10(min(here, default=1.0))
    if kind == "dead sublayer" and finding.part == "attention":
        # Either nothing comes out, or it looks at all tokens alike: the worse of the two.
        return min(
            log(measured.spreads["attention"][layer - 1]),
            log(measured.logit_scales["attention"][layer - 1]),
        )
    by_part, sign = {
        "dead sublayer": (measured.spreads, 1.0),
        "dominating sublayer": (measured.sizes, -1.0),
    }[kind]
    return sign * sum(log(by_part[part][layer - 1]) for part in parts) / len(parts)


def mend(
    subject: kit.Subject,
    measured: ModelFigures,
    fresh: ModelFigures | None,
    judge: Judge,
    prepare: Prepare,
    on_step: kit.OnStep = kit.silent,
) -> Mended:
    """Which suspects are to blame for what ``judge`` finds, by mending them one after another.

    ``measured`` is of ``prepare(subject)``, ``fresh`` of the twin. In each round the part whose
    repair restores most is kept, and the next round looks at what is left.
    """
    first_findings = tuple(judge(measured))
    bench = _Bench(subject, prepare(subject), prepare, measured, fresh)
    suspects: list[Suspect] = []
    if any(map(is_bad, first_findings)):
        suspects = causes.suspects(measured.weights, () if fresh is None else fresh.weights)
    blamed: list[Cause] = []
    tried: list[Cause] = []
    changes: Changes = {}
    now, findings, left = measured, first_findings, causes.groups(suspects)
    for round_ in range(_ROUNDS):
        kinds = {finding.kind for finding in first_findings if is_bad(finding)}
        bad = [finding for finding in findings if is_bad(finding) and finding.kind in kinds]
        left.sort(key=lambda group: -_relevance(group, bad))
        if all(finding.fate == "noted" for finding in bad):
            # Nothing is lost: that a trained model differs from an untrained one is no suspicion.
            left = [group for group in left if any(suspect.is_beside_others for suspect in group)]
        if not bad or not left:
            break
        trials = [bench.trial(group, changes, bad, now) for group in left[: _GROUPS - round_]]
        trials.sort(key=lambda trial: -_total(bad, trial.restored))
        best = trials[0]
        if max(best.restored.values()) < RESTORED or _total(bad, best.restored) <= 0:
            tried += trials * (not round_)
            break
        best = bench.least(best, changes, bad, now)
        tried += [best, *trials[1:]] * (not round_)
        blamed.append(best)
        changes = {**changes, **bench.repair(best.members, changes)}
        left = [group for group in left if group[0].location != best.members[0].location]
        now, findings = best.after, tuple(judge(best.after))
        on_step((round_ + 1) / _ROUNDS)
    return Mended(
        first_findings,
        tuple(blamed),
        tuple(tried),
        changes,
        measured,
        now,
        fresh,
        findings,
        () if fresh is None else tuple(judge(fresh)),
        tuple(suspects[:_LISTED]),
        products(subject.network) if suspects and subject.traced is None else (),
    )


def is_bad(finding: Finding) -> bool:
    """Whether it was found or is under way, or is there without being a loss."""
    return finding.fate in _WEIGHTS


def _relevance(group: Sequence[Suspect], bad: Sequence[Finding]) -> float:
    """How unusual a part is, and whether anything was found in it, or after it."""
    layer, part = group[0].location
    weight = 0.0
    for finding in bad:
        at = finding.layer or 0
        here = layer in (at, -1) and (part in finding.part or not finding.part)
        weight = max(weight, 3.0 if here else 1.0 if layer <= max(at, 1) else 0.3)
    return weight * group[0].score


def _restored(
    bad: Sequence[Finding], before: ModelFigures, after: ModelFigures, twin: ModelFigures | None
) -> dict[str, float]:
    """By kind, the part of what the model lacks beside its twin that came back, up to one."""
    parts = {}
    for finding in bad:
        start, end = health(finding, before, twin), health(finding, after, twin)
        least = 0.05 if finding.kind in ("entropy collapse", "cone") else 0.1
        goal = max(start + least, start if twin is None else health(finding, twin, twin))
        parts[finding.kind] = max(-1.0, min(1.0, (end - start) / (goal - start)))
    return parts


def _total(bad: Sequence[Finding], restored: Mapping[str, float]) -> float:
    """What a repair is worth; a note, which is no loss, does not speak against it."""
    return sum(
        _WEIGHTS[finding.fate] * max(restored[finding.kind], 0.0 if finding.fate == "noted" else -1)
        for finding in bad
    )


@dataclass(frozen=True)
class _Bench:
    """Where repairs are tried: a model, its twin, and the samples that are measured."""

    subject: kit.Subject
    few: kit.Subject
    prepare: Prepare
    before: ModelFigures
    fresh: ModelFigures | None

    @property
    def model(self) -> nn.Module:
        """The original, or the network where there is none."""
        return self.subject.network if self.subject.origin is None else self.subject.origin.model

    def trial(
        self, group: causes.Group, changes: Changes, bad: Sequence[Finding], before: ModelFigures
    ) -> Cause:
        """A group mended and measured, upon what was changed before."""
        after = self.measure({**changes, **self.repair(group, changes)})
        described = group[:_TOLD]
        done = [(suspect.path, *self.words(suspect)) for suspect in described]
        rest = len(group) - len(described)
        more = f"; and so on for {plural(rest, 'weight')} more" if rest else ""
        return Cause(
            group,
            "; ".join(map(causes.describe, described)) + more,
            "; ".join(f"`{path}` {what}" for path, what, _ in done) + more,
            any(drawn for *_, drawn in done),
            _restored(bad, before, after, self.fresh),
            after,
        )

    def least(
        self, trial: Cause, changes: Changes, bad: Sequence[Finding], before: ModelFigures
    ) -> Cause:
        """The one weight of a group that does nearly all of it, if one does; else all of them."""
        total, several = _total(bad, trial.restored), len(trial.members) > 1
        alike = trial.members[0].everywhere  # one layer alone would not do
        for suspect in trial.members[:_TOLD] if several and not alike else ():
            alone = self.trial((suspect,), changes, bad, before)
            if _total(bad, alone.restored) >= _ENOUGH * total:
                return alone
        return trial

    def measure(self, changes: Changes) -> ModelFigures:
        """Of the model with other weights; what it reads is read again if embeddings changed."""
        inside = {id(parameter) for parameter in self.subject.network.parameters()}
        origin, few = self.subject.origin, self.few
        with exchanged(changes, self.model, *self._network()):
            if self.subject.traced is None and origin is not None and not changes.keys() <= inside:
                few = self.prepare(replace(self.subject, x=origin.read()))
            return measure(few, kit.silent, self.before.weights)

    def _network(self) -> tuple[nn.Module, ...]:
        return () if self.subject.network is self.model else (self.subject.network,)

    def repair(self, group: Sequence[Suspect], changes: Changes) -> Changes:
        """What takes the place of each parameter of a group, upon what was changed before."""
        new: dict[int, tuple[nn.Parameter, Tensor]] = {}
        for suspect in group:
            stored = suspect.weight.stored
            key = id(stored)
            _, into = new.get(key, changes.get(key, (stored, stored.detach())))
            current = suspect.weight.pick(into)
            new[key] = stored, suspect.weight.written(self._mended(suspect, current), into)
        return new

    def _mended(self, suspect: Suspect, value: Tensor) -> Tensor:
        """A weight with its figure as elsewhere."""
        figure, usual = suspect.figure, suspect.usual
        if figure == "bias":
            least = usual / max(suspect.value, 1e-300)
            return value * min(1.0, least)
        if figure == "equal rows" and suspect.value >= thresholds.EQUAL_ROWS:
            return value - value.mean(0)
        if figure == "directions" and value.ndim == 1:
            return value.clamp(-_CLIPPED * value.abs().median(), _CLIPPED * value.abs().median())
        if self._redrawn(suspect):
            drawn = self._counterpart(suspect.weight).to(value)
            if figure in ("dead rows", "dead columns"):
                axis = 1 if figure == "dead rows" else 0
                lengths = value.norm(dim=axis, keepdim=True)
                dead = lengths <= 1e-3 * float(lengths.max())
                fresh = drawn.norm(dim=axis, keepdim=True).clamp_min(1e-300)
                alive = lengths[~dead]
                size = float(alive.median()) if alive.numel() and bool(alive.any()) else None
                return torch.where(dead, drawn if size is None else drawn / fresh * size, value)
            target = usual if figure in ("size", "gain") else self._size(suspect.weight)
            size = float(drawn.double().square().mean().sqrt())
            if figure == "gain":
                size = float(drawn.double().abs().median())
            return drawn * (target / size if size and target else 1.0)
        return value * (usual / suspect.value)

    def _redrawn(self, suspect: Suspect) -> bool:
        if suspect.figure in ("size", "gain"):
            return suspect.value < _DEAD * suspect.usual * (
                1e-3 if suspect.figure == "gain" or suspect.weight.layer == 0 else 1.0
            )
        if suspect.figure == "directions" and suspect.weight.value.ndim == 1:
            return False
        if suspect.figure == "equal rows":
            return suspect.value < thresholds.EQUAL_ROWS
        return suspect.figure != "bias"

    def _counterpart(self, weight: Weight) -> Tensor:
        """The same weight of the untrained twin, or random numbers where there is no twin."""
        for reading in () if self.fresh is None else self.fresh.weights:
            if (reading.weight.layer, reading.weight.role) == (weight.layer, weight.role):
                return reading.weight.value
        return torch.randn(weight.value.shape, generator=stream(0, "repair", weight.role))

    def _size(self, weight: Weight) -> float:
        """The usual root mean square of a weight of this role; that of the twin if it is alone."""
        sizes = [
            reading.figures["size"]
            for reading in self.before.weights
            if reading.weight.role == weight.role
            and reading.weight.layer != weight.layer
            and "size" in reading.figures
        ]
        return float(torch.tensor(sizes).median()) if sizes else 0.0

    def words(self, suspect: Suspect) -> tuple[str, bool]:
        """What was done to a weight, and whether new numbers were drawn."""
        if suspect.figure == "bias":
            if suspect.usual <= 0:
                return "set to zero", False
            factor = min(1.0, suspect.usual / suspect.value)
            return f"multiplied by {short(factor, digits=2)}", False
        if suspect.figure == "equal rows" and not self._redrawn(suspect):
            return "with the mean of its rows subtracted", False
        if suspect.figure == "directions" and suspect.weight.value.ndim == 1:
            return f"clipped at {_CLIPPED:g} times its median", False
        if self._redrawn(suspect):
            part = suspect.figure in ("dead rows", "dead columns")
            return f"{'zero ' + suspect.figure[5:] + ' ' if part else ''}reinitialised", True
        return f"multiplied by {short(suspect.usual / suspect.value, digits=2)}", False


def check_folder(folder: Path, subject: kit.Subject) -> None:
    """Raise unless a repaired checkpoint can be written there: into a folder that is new or empty.

    The model's own is neither, so that nothing is ever overwritten.
    """
    if subject.origin is None or subject.origin.save is None:
        raise InputError(
            f"fix={str(folder)!r} writes a repaired checkpoint, which a network does not have; "
            "give a model (a folder, a Hub id, or one of transformers)."
        )
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder that does not exist yet.")
    if folder.is_dir() and any(folder.iterdir()):
        source = subject.origin.folder
        whose = "the model's own folder" if source and source.samefile(folder) else "not empty"
        raise InputError(
            f"{folder} is {whose}, and nothing is overwritten; name a folder that does not exist "
            "yet."
        )


def write_repaired(mended: Mended, subject: kit.Subject, folder: Path) -> str:
    """Write a checkpoint with the repairs that help, and say so; nothing if none does."""
    check_folder(folder, subject)
    assert subject.origin is not None
    assert subject.origin.save is not None
    if not mended.causes:
        return f"Nothing was written to {folder}: no repair helps."
    with exchanged(mended.changes, subject.origin.model, subject.network):
        subject.origin.save(folder)
    return f"The repaired model is in {folder}; check it with `rankscope diagnose {folder}`."
