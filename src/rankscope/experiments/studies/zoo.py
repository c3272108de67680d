"""Models broken on purpose, and healthy ones: does a diagnosis find the fault, its cause, a repair?

Every model is tiny, of an architecture that ``rankscope.load`` converts, and drawn here. A fault is
a change of a few weights of one part; what counts as found was written down with it.
"""

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

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
from rankscope.models.text import passages
from rankscope.numerals import plural
from rankscope.results import Finding
from rankscope.streams import global_stream, stream

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
            "Whether anything is said to be wrong with a model that nothing was done to.",
            includes=(0.0, 1.0),
        ),
    ),
)
_VOCABULARY: Final = 512
_SHAPE: Final = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 48,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}
_ENDS: Final[dict[str, Any]] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


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


def make_model(family: str, layers: int, seed: int) -> nn.Module:
    """A tiny model of a family, with weights of about the size that trained ones have.

    Matrices are drawn with a standard deviation of about 0.8 over the root of the fan-in, a little
    larger or smaller in each; gains about one, biases about a tenth.
    """
    import transformers as hf  # seconds

    hf.utils.logging.set_verbosity_error()
    shape: dict[str, Any] = {**_SHAPE, "num_hidden_layers": layers}
    makers: dict[str, Callable[[], nn.Module]] = {
        "bert": lambda: hf.BertModel(hf.BertConfig(**shape)),
        "roberta": lambda: hf.RobertaModel(hf.RobertaConfig(**shape)),
        "distilbert": lambda: hf.DistilBertModel(
            hf.DistilBertConfig(
                vocab_size=_VOCABULARY, dim=48, n_layers=layers, n_heads=4, hidden_dim=96
            )
        ),
        "gpt2": lambda: hf.GPT2LMHeadModel(
            hf.GPT2Config(
                vocab_size=_VOCABULARY, n_embd=48, n_layer=layers, n_head=4, n_positions=64, **_ENDS
            )
        ),
        "llama": lambda: hf.LlamaForCausalLM(
            hf.LlamaConfig(**shape, num_key_value_heads=2, **_ENDS)
        ),
        "qwen3": lambda: hf.Qwen3Model(
            hf.Qwen3Config(**shape, num_key_value_heads=2, head_dim=12, **_ENDS)
        ),
        "mistral": lambda: hf.MistralModel(
            hf.MistralConfig(**shape, num_key_value_heads=2, sliding_window=16, **_ENDS)
        ),
        "neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**shape, **_ENDS)),
        "t5": lambda: hf.T5EncoderModel(
            hf.T5Config(
                vocab_size=_VOCABULARY, d_model=48, d_kv=12, d_ff=96, num_layers=layers, num_heads=4
            )
        ),
        "xlnet": lambda: hf.XLNetModel(
            hf.XLNetConfig(vocab_size=_VOCABULARY, d_model=48, n_layer=layers, n_head=4, d_inner=96)
        ),
    }
    if family not in makers:
        raise InputError(f"there is no family {family!r}; choose {', '.join(makers)}.")
    with global_stream(seed, "zoo", family):
        model = makers[family]().eval()
    generator = stream(seed, "zoo", "weights", family)
    with torch.no_grad():
        for place, module in model.named_modules():
            if isinstance(module, nn.Embedding):
                if family != "t5":
                    size = 0.15 if "pos" in place or "wpe" in place else 0.5
                    module.weight *= size / module.weight.std()
                continue
            for parameter in module.parameters(recurse=False):
                _draw(parameter, generator)
    return model


def _draw(parameter: Tensor, generator: torch.Generator) -> None:
    noise = torch.randn(parameter.shape, generator=generator)
    wobble = math.exp(0.2 * float(torch.randn((), generator=generator)))
    if parameter.ndim >= 2:
        # XLNet keeps its projections as (width, head, head width).
        fan_in = parameter.shape[0 if parameter.ndim == 3 else -1]
        parameter.copy_(noise * 0.8 * wobble / math.sqrt(fan_in))
    elif float(parameter.abs().max()) > 0:  # a gain
        parameter.copy_((0.1 * noise).exp() * wobble)
    else:
        parameter.copy_(0.1 * noise)


class Fault(NamedTuple):
    """What is done to which weights of a layer, and by which figures it may be known.

    ``roles`` are changed one after another, each by ``change(value, generator)``. A model that
    lacks one of them cannot have the fault. A layer of 0 is the embeddings.
    """

    roles: Mapping[str, Callable[[Tensor, torch.Generator], Tensor]]
    figures: tuple[str, ...]
    embeddings: bool = False
    after_sum: bool = False
    """Whether it takes a norm after the sum: before a branch, it would take nothing away."""


def _times(factor: float) -> Callable[[Tensor, torch.Generator], Tensor]:
    return lambda value, _generator: value * factor


def _random(scale: float) -> Callable[[Tensor, torch.Generator], Tensor]:
    def change(value: Tensor, generator: torch.Generator) -> Tensor:
        return value + scale * torch.randn(value.shape, generator=generator)

    return change


def _rank_one(value: Tensor, generator: torch.Generator) -> Tensor:
    left, right = (torch.randn(size, generator=generator) for size in value.shape)
    return torch.outer(left, right) * float(value.square().mean().sqrt())


def _one_row(value: Tensor, _generator: torch.Generator) -> Tensor:
    kept = torch.zeros_like(value)
    kept[0] = value[0]
    return kept


def _as_drawn(value: Tensor, generator: torch.Generator) -> Tensor:
    return 0.02 * torch.randn(value.shape, generator=generator)


def _half_zero(value: Tensor, _generator: torch.Generator) -> Tensor:
    changed = value.clone()
    changed[: len(value) // 2] = 0
    return changed


def _one_large(value: Tensor, _generator: torch.Generator) -> Tensor:
    changed = value.clone()
    changed[3] *= 1000
    return changed


def _common_row(value: Tensor, generator: torch.Generator) -> Tensor:
    size = float(value.square().mean().sqrt())
    return value + 30 * size * torch.randn(value.shape[-1], generator=generator)


def _equal(value: Tensor, _generator: torch.Generator) -> Tensor:
    return value[5:6].expand_as(value).clone()


_ZERO: Final = _times(0.0)
FAULTS: Final[dict[str, Fault]] = {
    "logits × 400": Fault({"query": _times(20.0), "key": _times(20.0)}, ("size",)),
    "attention norm's gain × 0.001": Fault({"attention gain": _times(1e-3)}, ("gain",)),
    "MLP norm's gain × 0.001": Fault({"mlp gain": _times(1e-3)}, ("gain",)),
    "gain × 0.15, bias": Fault(
        {"mlp gain": _times(0.15), "mlp norm bias": _random(1.0)},
        ("gain", "bias"),
        after_sum=True,
    ),
    "constant values, output × 50": Fault(
        {"value": _ZERO, "value bias": _random(1.0), "output": _times(50.0)},
        ("size", "bias", "directions"),
    ),
    "identity": Fault(
        dict.fromkeys(("output", "output bias", "down", "down bias"), _ZERO),
        ("size",),
    ),
    "values zero": Fault({"value": _ZERO, "value bias": _ZERO, "output bias": _ZERO}, ("size",)),
    "attention output zero": Fault({"output": _ZERO, "output bias": _ZERO}, ("size",)),
    "MLP output zero": Fault({"down": _ZERO, "down bias": _ZERO}, ("size",)),
    "attention output × 50": Fault({"output": _times(50.0)}, ("size",)),
    "MLP output × 50": Fault({"down": _times(50.0)}, ("size",)),
    "values of rank one": Fault({"value": _rank_one}, ("directions",)),
    "one value row left": Fault({"value": _one_row}, ("dead rows", "directions", "size")),
    "common direction": Fault({"down bias": _random(10.0)}, ("bias",)),
    "common direction of attention": Fault({"output bias": _random(10.0)}, ("bias",)),
    "queries and keys zero": Fault(
        dict.fromkeys(("query", "query bias", "key", "key bias"), _ZERO), ("size",)
    ),
    "half of the values zero": Fault(
        {"value": _half_zero, "value bias": _half_zero}, ("dead rows", "directions", "size")
    ),
    "MLP never active": Fault({"up bias": lambda value, _: torch.full_like(value, -50)}, ("bias",)),
    "one gain × 1000": Fault({"mlp gain": _one_large}, ("directions",)),
    "bias of a norm": Fault({"mlp norm bias": _random(10.0)}, ("bias",)),
    "attention as drawn": Fault(
        dict.fromkeys(("query", "key", "value", "output"), _as_drawn), ("size",)
    ),
    "common word embedding": Fault({"words": _common_row}, ("equal rows",), embeddings=True),
    "word embeddings of rank one": Fault({"words": _rank_one}, ("directions",), embeddings=True),
    "equal word embeddings": Fault({"words": _equal}, ("equal rows",), embeddings=True),
    "tiny word embeddings": Fault({"words": _times(1e-3)}, ("size",), embeddings=True),
}
_OPTIONAL: Final = ("query bias", "key bias", "value bias", "output bias", "down bias")
"""Roles that some architectures lack, which are left out if others are there to be changed."""


@dataclass(frozen=True)
class Case:
    """One model, broken or not, and what was said about it."""

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
        """What was found, the worst first."""
        order = {"collapse": 0, "slow": 1, "noted": 2}
        found = [each for each in self.mended.found if each.fate in order]
        return sorted(found, key=lambda each: order[each.fate])

    @property
    def place(self) -> tuple[int, str] | None:
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
        if self.place is None or self.place[0] != self.layer:
            return False
        named = self.place[1]
        return any(part in named or (named and named in part) for part in self.parts)

    @property
    def cause_right(self) -> bool:
        """Whether a weight that was changed is named, with a figure that tells the change."""
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
        """Whether something is said to be wrong."""
        return any(each.fate in ("collapse", "slow") for each in self.mended.found) or bool(
            self.mended.causes
        )


def subject_of(model: nn.Module, config: Config) -> kit.Subject:
    """The model on bundled passages, each word as an id."""
    from rankscope.ask import model_subject  # imports Transformers

    ids = [
        [3 + zlib.crc32(word.encode()) % (_VOCABULARY - 3) for word in text.lower().split()]
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
    if len(lacking) == len(fault.roles) or any(role not in _OPTIONAL for role in lacking):
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
        return {each.role: each for each in weights_of(subject.network) if each.layer == layer}
    body: Any = getattr(model, "base_model", model)
    table = body.get_input_embeddings()
    words = (each for each in outer_weights(model, subject.network) if each.module is table)
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


def measure(config: Config, on_step: kit.OnStep) -> kit.Measured[list[Case]]:
    """Break every model in every way, and look at as many that nothing was done to."""
    found = []
    for (family, fault, seed, layer), _ in kit.tracked(list(cases(config)), on_step):
        case = look(config, family, fault, seed, layer)
        if case is not None:
            found.append(case)
    rows: list[tuple[Any, ...]] = []
    for number, case in enumerate(found):
        broken = ("place_right", "cause_right", "half_restored")
        for name in broken if case.fault else ("false_alarm",):
            value = float(getattr(case, name))
            rows.append((case.family, case.fault or "healthy", number, name, value))
    table = tables.from_rows(("model", "variant", "sample", "metric", "value"), rows)
    return kit.Measured(table, facts=found)


def look(config: Config, family: str, fault: str, seed: int, layer: int) -> Case | None:
    """One model, diagnosed by its figures, rules, causes and repairs; None if it cannot be."""
    subject = subject_of(make_model(family, config.layers, seed), config)
    if not fault:
        return Case(family, "", seed, 0, (), (), examine(subject, seed))
    whole = subject_of(make_model(family, config.layers, seed), config)
    assert subject.origin is not None
    changed = break_model(subject, FAULTS[fault], layer, seed)
    if changed is None:
        return None
    subject = subject_of(subject.origin.model, config)
    case = Case(family, fault, seed, layer, *changed, examine(subject, seed))
    return beside_intact(case, whole)


def beside_intact(case: Case, intact: kit.Subject) -> Case:
    """With the first finding that the intact model does not show, and its figure there."""
    twin, measured = case.mended.fresh, measured_of(intact)
    shown = {(each.kind, each.fate) for each in judge_few(intact, twin, measured)}
    for finding in case.bad:
        if (finding.kind, finding.fate) not in shown:
            return replace(case, lost=finding, healthy=health_of(finding, measured, twin))
    return case


def judge(_config: Config, measured: kit.Measured[list[Case]]) -> kit.Answer:
    """How often each was right, and a table of every model that was broken."""
    broken = [case for case in measured.facts if case.fault]
    healthy = [case for case in measured.facts if not case.fault]
    shares = {
        "layer and part named": _share([case.place_right for case in broken]),
        "cause named": _share([case.cause_right for case in broken]),
        "restored at least half-way": _share([case.half_restored for case in broken]),
        "false alarms": _share([case.false_alarm for case in healthy]),
    }
    told = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    return kit.Answer(
        [
            f"Of {plural(len(broken), 'model')} broken on purpose and {len(healthy)} healthy ones: "
            f"{told}."
        ],
        key_figures=shares,
        listings=(_listing(broken),),
        charts=(),
        shown=("place_right", "cause_right", "half_restored", "false_alarm"),
    )


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else math.nan


def _listing(broken: Sequence[Case]) -> kit.Listing:
    rows = []
    for case in broken:
        where = "nowhere" if case.place is None else f"layer {case.place[0]}, {case.place[1]}"
        why = case.mended.causes[0].sentence if case.mended.causes else "no cause"
        marks = ["yes" if each else "no" for each in (case.place_right, case.cause_right)]
        restored = "yes" if case.half_restored else "no"
        finding = case.bad[0].kind if case.bad else "nothing"
        true = f"layer {case.layer}, {case.parts[0]}"
        rows.append((case.family, case.fault, true, finding, where, *marks, why, restored))
    return kit.Listing(
        "What was done to each model, and what was found",
        ("model", "fault", "in", "found", "blamed", "right", "cause right", "why", "restored"),
        tuple(rows),
    )
