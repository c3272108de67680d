"""Models broken on purpose, and healthy ones: does a diagnosis find the fault, its cause, a repair?

Every model is tiny, randomly initialised, and of an architecture that ``rankscope.load`` converts.
A fault changes a few weights of one part; it states what counts as finding it.
"""

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from rankscope import tables
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.diagnosis import (
    Mended,
    Weight,
    examine,
    judge_few,
    measured_of,
    outer_weights,
    weights_of,
)
from rankscope.experiments.diagnosis import health as health_of
from rankscope.experiments.studies._faults import FAULTS, OPTIONAL, VOCABULARY, Fault, make_model
from rankscope.models.text import passages
from rankscope.numerals import plural
from rankscope.results import Finding
from rankscope.streams import stream

ENTRY = kit.study(
    "zoo",
    "Models broken on purpose: whether a diagnosis finds the fault, its cause and a repair",
    question="How often does a diagnosis name the layer, the part and the cause, and mend it?",
    seconds=90,
    small=True,
    metrics=(
        kit.Metric(
            "place_right",
            "Layer and part named",
            "share",
            "linear",
            "1 = of every model",
            "Whether the first cause, or else the first finding, is in the layer and part broken.",
            includes=(0.0, 1.0),
        ),
        kit.Metric(
            "cause_right",
            "Cause named",
            "share",
            "linear",
            "1 = of every model",
            "Whether the cause names a weight that was changed, with a figure that was changed.",
            includes=(0.0, 1.0),
        ),
        kit.Metric(
            "half_restored",
            "Restored at least half-way",
            "share",
            "linear",
            "1 = of every model",
            "Whether the repair brings the figure of the first finding that the intact model did "
            "not show at least half-way back to what it was in that model.",
            includes=(0.0, 1.0),
        ),
        kit.Metric(
            "false_alarm",
            "False alarms",
            "share",
            "linear",
            "0 = none of them alarms",
            "Whether the diagnosis reports a problem in a model that was not changed.",
            includes=(0.0, 1.0),
        ),
    ),
)


@dataclass(frozen=True)
class Config(kit.Config):
    """``families`` and ``faults`` by name (all of them if empty), each with so many ``seeds``.

    A fault is put into one layer of every second family that can have it (``every``); which layer
    and which families goes round. There are as many healthy models.
    """

    families: tuple[str, ...] = ("bert", "distilbert", "gpt2", "llama", "neox", "t5")
    faults: tuple[str, ...] = ()
    seeds: int = 1
    every: int = 2
    layers: int = 6
    texts: int = 8
    tokens: int = 32


@dataclass(frozen=True)
class DiagnosedModel:
    """One model, broken or not, and its diagnosis."""

    family: str
    fault: str
    seed: int
    layer: int
    paths: tuple[str, ...]
    parts: tuple[str, ...]
    mended: Mended
    lost: Finding | None = None
    """The first finding that the model did not show before it was broken."""
    healthy: float = math.nan
    """Its figure then."""

    @property
    def bad(self) -> list[Finding]:
        """The findings that are bad, the worst first."""
        order = {"collapse": 0, "slow": 1, "noted": 2}
        findings = [finding for finding in self.mended.findings if finding.fate in order]
        return sorted(findings, key=lambda finding: order[finding.fate])

    @property
    def location(self) -> tuple[int, str] | None:
        """The layer and part that are blamed."""
        if self.mended.causes:
            first = self.mended.causes[0]
            return first.layer, first.part
        if not self.bad or self.bad[0].layer is None:
            return None
        return self.bad[0].layer, self.bad[0].part

    @property
    def place_right(self) -> bool:
        """Whether that is where the model was broken."""
        if self.location is None or self.location[0] != self.layer:
            return False
        named = self.location[1]
        return any(part in named or (named and named in part) for part in self.parts)

    @property
    def cause_right(self) -> bool:
        """Whether the cause names a weight that was changed, with a figure that was changed."""
        figures = FAULTS[self.fault].figures
        return any(
            path in self.paths and suspect.figure in figures
            for cause in self.mended.causes[:1]
            for path, suspect in zip(cause.paths, cause.members, strict=True)
        )

    @property
    def half_restored(self) -> bool:
        """Whether the repair brings the figure that was lost at least half-way back."""
        if self.lost is None or not self.mended.causes:
            return False
        before, after = (
            health_of(self.lost, measured, self.mended.fresh)
            for measured in (self.mended.before, self.mended.after)
        )
        return after - before >= 0.5 * (self.healthy - before) > 0

    @property
    def false_alarm(self) -> bool:
        """Whether the diagnosis reports a problem."""
        fates = {finding.fate for finding in self.mended.findings}
        return bool(fates & {"collapse", "slow"} or self.mended.causes)


def subject_of(model: nn.Module, config: Config) -> kit.Subject:
    """The model on bundled passages, each word as an id."""
    from rankscope.ask import model_subject  # imports Transformers

    ids = [
        [3 + zlib.crc32(word.encode()) % (VOCABULARY - 3) for word in text.lower().split()]
        for text in passages()[: config.texts]
    ]
    return model_subject(model, ids=ids, length=config.tokens)


def break_model(
    subject: kit.Subject, fault: Fault, layer: int, seed: int
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Change the model's weights; the paths and parts that were changed, None if it lacks them."""
    assert subject.origin is not None
    model = subject.origin.model
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    generator = stream(seed, "zoo", "fault")
    paths, parts = [], []
    weights = _roles(subject, model, fault, layer)
    if fault.after_sum and subject.network.spec.norm_place != "post":
        return None
    lacking = [role for role in fault.roles if role not in weights]
    if len(lacking) == len(fault.roles) or any(role not in OPTIONAL for role in lacking):
        return None
    for role, change in fault.roles.items():
        if role in weights:
            weight = weights[role]
            value = change(weight.value, generator)
            with torch.no_grad():
                weight.stored.copy_(weight.written(value, weight.stored))
            paths.append(names[id(weight.stored)])
            parts.append(weight.part)
    return tuple(paths), tuple(parts)


def _roles(subject: kit.Subject, model: nn.Module, fault: Fault, layer: int) -> dict[str, Weight]:
    if not fault.embeddings:
        return {
            weight.role: weight for weight in weights_of(subject.network) if weight.layer == layer
        }
    body: Any = getattr(model, "base_model", model)
    table = body.get_input_embeddings()
    words = (weight for weight in outer_weights(model, subject.network) if weight.module is table)
    return {"words": next(words)}


def cases(config: Config) -> Iterator[tuple[str, str, int, int]]:
    """Family, fault (empty for none), seed and layer of every model."""
    unknown = {*config.faults} - {*FAULTS}
    if unknown:
        raise InputError(f"there is no fault {min(unknown)!r}; choose {', '.join(FAULTS)}.")
    faults = config.faults or tuple(FAULTS)
    for seed in range(config.seed, config.seed + config.seeds):
        for at, family in enumerate(config.families):
            for turn, fault in enumerate(faults):
                if (at + turn + seed) % config.every == 0:
                    layer = 1 + (at + turn // config.every + seed) % config.layers
                    yield family, fault, seed, 0 if FAULTS[fault].embeddings else layer
    healthy = math.ceil(len(faults) * config.seeds / config.every)
    for family in config.families:
        for number in range(healthy):
            yield family, "", config.seed + number, 0


def measure(config: Config, on_step: kit.OnStep) -> kit.Measured[list[DiagnosedModel]]:
    """Diagnose every model with every fault, and as many healthy ones."""
    diagnosed = []
    for (family, fault, seed, layer), _ in kit.tracked(list(cases(config)), on_step):
        case = look(config, family, fault, seed, layer)
        if case is not None:
            diagnosed.append(case)
    rows: list[tuple[Any, ...]] = []
    for number, case in enumerate(diagnosed):
        broken = ("place_right", "cause_right", "half_restored")
        for name in broken if case.fault else ("false_alarm",):
            value = float(getattr(case, name))
            rows.append((case.family, case.fault or "healthy", number, name, value))
    table = tables.from_rows(("model", "variant", "sample", "metric", "value"), rows)
    return kit.Measured(table, facts=diagnosed)


def look(config: Config, family: str, fault: str, seed: int, layer: int) -> DiagnosedModel | None:
    """One model, diagnosed by its figures, rules, causes and repairs; None if it lacks the part."""
    subject = subject_of(make_model(family, config.layers, seed), config)
    if not fault:
        return DiagnosedModel(family, "", seed, 0, (), (), examine(subject, seed))
    intact = subject_of(make_model(family, config.layers, seed), config)
    assert subject.origin is not None
    changed = break_model(subject, FAULTS[fault], layer, seed)
    if changed is None:
        return None
    subject = subject_of(subject.origin.model, config)
    case = DiagnosedModel(family, fault, seed, layer, *changed, examine(subject, seed))
    return beside_intact(case, intact)


def beside_intact(case: DiagnosedModel, intact: kit.Subject) -> DiagnosedModel:
    """With the first finding that the intact model does not show, and its figure there."""
    twin, measured = case.mended.fresh, measured_of(intact)
    shown = {(finding.kind, finding.fate) for finding in judge_few(intact, twin, measured)}
    for finding in case.bad:
        if (finding.kind, finding.fate) not in shown:
            return replace(case, lost=finding, healthy=health_of(finding, measured, twin))
    return case


def judge(_config: Config, measured: kit.Measured[list[DiagnosedModel]]) -> kit.Answer:
    """How often each was right, and a table of every model that was broken."""
    broken = [case for case in measured.facts if case.fault]
    healthy = [case for case in measured.facts if not case.fault]
    shares = {
        "layer and part named": _share([case.place_right for case in broken]),
        "cause named": _share([case.cause_right for case in broken]),
        "restored at least half-way": _share([case.half_restored for case in broken]),
        "false alarms": _share([case.false_alarm for case in healthy]),
    }
    listed = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    return kit.Answer(
        [
            f"Of {plural(len(broken), 'model')} broken on purpose and {len(healthy)} healthy ones: "
            f"{listed}."
        ],
        key_figures=shares,
        listings=(_listing(broken),),
        charts=(),
        shown=("place_right", "cause_right", "half_restored", "false_alarm"),
    )


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else math.nan


def _listing(broken: Sequence[DiagnosedModel]) -> kit.Listing:
    rows = []
    for case in broken:
        layer, part = case.location or (None, "")
        where = "nowhere" if layer is None else f"layer {layer}, {part}"
        why = case.mended.causes[0].sentence if case.mended.causes else "no cause"
        marks = ["yes" if right else "no" for right in (case.place_right, case.cause_right)]
        restored = "yes" if case.half_restored else "no"
        finding = case.bad[0].kind if case.bad else "nothing"
        true = f"layer {case.layer}, {case.parts[0]}"
        rows.append((case.family, case.fault, true, finding, where, *marks, why, restored))
    return kit.Listing(
        "What was done to each model, and what was found",
        ("model", "fault", "in", "found", "blamed", "right", "cause right", "why", "restored"),
        tuple(rows),
    )
