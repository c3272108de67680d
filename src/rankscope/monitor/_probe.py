"""The fixed probe: one batch that goes through the model as it is, again and again.

The pass runs the uncompiled module without gradients, on all samples of the probe, or on this
process's part of them; random states, buffers, modes and hooks are left as they were.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankscope.core.metrics import AttentionScores, visible_keys
from rankscope.core.pooling import LAST, MEAN
from rankscope.core.tracing import (
    LayerRecord,
    LayerWatch,
    ModelParts,
    Pass,
    Sublayer,
    find_sublayers,
    kind_of,
    record,
)
from rankscope.errors import InputError, RankscopeError
from rankscope.monitor._figures import ProbeFigures, SampleFigures
from rankscope.monitor._history import Place
from rankscope.monitor._live import paused
from rankscope.monitor._processes import reducing_device
from rankscope.monitor._routers import RouterWatch, find_routers
from rankscope.monitor._subject import Subject, is_sharded

Inputs = Tensor | Mapping[str, Any] | Sequence[Any]
Mode = Literal["evaluation", "training"]
Pooling = Literal["mean", "last"]
_POOLING: Final = {"mean": MEAN, "last": LAST}


@dataclass
class ProbeOptions:
    """How a probe runs: see ``Monitor``."""

    token_mask: Tensor | None = None
    mode: Mode = "evaluation"
    autocast: torch.dtype | None = None
    pooling: Pooling | None = None
    tracing: dict[str, Any] = field(default_factory=dict)
    """``blocks``, ``layout``, ``stream`` and ``output`` of ``trace``."""


class Probe:
    """A batch and the pass that measures a model on it.

    What does not change is found out by the first pass: the sublayers, which pooling is usual,
    and the entropy of uniform attention under the model's mask.
    """

    def __init__(self, subject: Subject, options: ProbeOptions) -> None:
        # A copy: the caller may fill its tensors anew.
        self._subject, self._inputs = subject, _to(subject.inputs, torch.device("cpu"), copy=True)
        self._options = options
        self._divided = self._trusted = self._token_first = False
        self._pooling = _POOLING[options.pooling or "mean"]
        self._even: dict[int, tuple[float, bool]] = {}
        self._sublayers: dict[int, tuple[Sublayer, ...]] = {}  # by id: sharding changes classes
        self.notes: dict[str, str] = {}
        """What was inferred, and why figures are missing."""
        inputs = self._on_device(self._inputs)
        self._parts = ModelParts.of(self._model, options.tracing.get("blocks"))
        self._modules = [*map(id, _all_modules(self._model))]
        Pass.planned(self._model, inputs, _nothing, parts=self._parts, **self._tracing())
        self.blocks: list[nn.Module] = list(self._parts.stack.blocks)
        self._routers = find_routers(self.blocks)
        self.experts = max((router.experts for router in self._routers.values()), default=0)
        self.samples = self.tokens = self.layers = 0
        self._find_sublayers()

    def first(self) -> dict[Place, float]:
        """Measure for the first time, on all samples in every process."""
        figures = self._run(self._inputs, self._options.token_mask, first=True)
        causal = any(is_causal for _, is_causal in self._even.values())
        if self._options.pooling is None and causal:
            # The last token is the only one that has read the whole text.
            self._pooling = LAST
            figures = self._run(self._inputs, self._options.token_mask)
        self.notes["pooled"] = self._pooling
        return figures.summary()

    def measure(self) -> dict[Place, float]:
        """Measure again."""
        if not self._divided:
            return self._run(self._inputs, self._options.token_mask).summary()
        rows, device = self._rows, reducing_device(self._model)
        mask = self._options.token_mask
        figures = self._run(_rows_of(self._inputs, rows, self.samples),
                            mask if mask is None or mask.ndim < 2 else mask[rows])  # fmt: skip
        return figures.gathered(rows, self.samples, device).summary()

    def divide(self) -> bool:
        """From now on each process runs its part of the samples, if there is one for each."""
        world = dist.get_world_size()
        fits = _batch_of(self._inputs) == self.samples >= world
        self._divided = fits and not self._token_first
        return self._divided

    @property
    def _model(self) -> nn.Module:
        """What runs: without its head, unless the root of a sharded model must gather weights."""
        subject = self._subject
        return subject.model if is_sharded(subject.model) else subject.body

    @property
    def _rows(self) -> slice:
        rank, world = dist.get_rank(), dist.get_world_size()
        return slice(self.samples * rank // world, self.samples * (rank + 1) // world)

    @property
    def facts(self) -> dict[str, Any]:
        """What the first pass showed, for the history of a run.

        ``even_entropy`` is that of uniform attention over the keys that queries see, in the layer
        that sees most.
        """
        return {
            "layers": self.layers,
            "tokens": self.tokens,
            "samples": self.samples,
            "experts": self.experts or None,
            "even_entropy": max((entropy for entropy, _ in self._even.values()), default=None),
            **{f"about {name}": words for name, words in self.notes.items()},
        }

    def _run(
        self, inputs: Inputs, token_mask: Tensor | None, *, first: bool = False
    ) -> SampleFigures:
        inputs, options = self._on_device(inputs), self._options
        made: list[ProbeFigures] = []

        def figures(layers: int) -> ProbeFigures:
            made.append(ProbeFigures(layers, pooling=self._pooling))
            return made[0]

        mask = _to(token_mask, self._device)
        parts = self._current_parts()
        planned = Pass.planned(
            self._model, inputs, figures, token_mask=mask, parts=parts, **options.tracing
        )
        if [id(block) for block in planned.parts.stack.blocks] != [
            id(block) for block in self.blocks
        ]:
            raise InputError(
                "blocks of the model were added or replaced since the monitor was made; make a new "
                "one, because layers no longer correspond to those of its baseline."
            )
        measured = made[0]
        measured.token_mask = planned.token_mask
        unread: dict[int, str] = {}
        heard: list[bool] = []

        def on_layer(layer_record: LayerRecord) -> None:
            layer = len(watch.layers)
            heard.append(len(layer_record.heard) == 1)
            sublayers = self._sublayers.get(id(layer_record.block), ())
            if first and (scores := _only_scores(layer_record)) is not None:
                self._even[layer] = _uniform(scores, planned.token_mask)
            if why := measured.measure_layer(layer, layer_record, sublayers):
                unread[layer] = why

        by_kind = {
            kind_of(block): self._sublayers[id(block)]
            for block in self.blocks
            if id(block) in self._sublayers
        }
        watch = LayerWatch(self._model, self.blocks, by_kind, on_layer, trusted=self._trusted)
        routers = RouterWatch(self.blocks, self._routers)
        settings: dict[str, str] = {}

        def listen(changes: Any) -> None:
            watch.listen(changes)
            routers.listen(changes, planned.token_mask)

        device = self._device.type
        precision = torch.autocast(device, options.autocast) if options.autocast else nullcontext()
        with precision, paused():
            planned.observe(settings, listen, training=options.mode == "training")
        watch.judge()
        for layer, layer_record in enumerate(watch.layers, start=1):
            if layer_record.unread:
                measured.drop_attention(layer)
                unread[layer] = layer_record.unread[0]
        if first:
            self._learn(measured, settings, unread, planned)
            self._trusted = all(heard) and not unread
        result = measured.figures(token_first=planned.recorder.token_first)
        return SampleFigures(result.values, result.pooled, routers.counts())

    def _learn(
        self,
        measured: ProbeFigures,
        settings: dict[str, str],
        unread: dict[int, str],
        planned: Pass,
    ) -> None:
        """What the first pass shows about all later ones."""
        last = max(measured.shapes)
        self.samples, tokens, _ = measured.shapes[last]
        self.layers, self._token_first = last, planned.recorder.token_first
        mask = planned.token_mask
        if mask is not None and mask.ndim == 2:
            tokens = int(mask.sum(-1).float().quantile(0.5))
        self.tokens = int(tokens)
        self.notes |= {"stack": planned.parts.stack.words, **settings}
        if unread:
            layer, why = next(iter(unread.items()))
            self.notes["attention"] = f"not measured in {len(unread)} layers; layer {layer}: {why}"

    def _find_sublayers(self) -> None:
        """Which modules are attention and MLP, confirmed on one sample."""
        batch = _batch_of(self._inputs)
        inputs, mask = self._inputs, self._options.token_mask
        if batch:
            inputs = _rows_of(inputs, slice(0, 1), batch)
            mask = mask if mask is None or mask.ndim < 2 else mask[:1]
        try:
            recording = record(
                self._model, self._on_device(inputs), token_mask=_to(mask, self._device),
                **self._options.tracing,
            )  # fmt: skip
            found = find_sublayers(recording)
            self._sublayers = {
                id(block): found[kind_of(block)] for block in self.blocks if kind_of(block) in found
            }
        except InputError:
            raise
        except RankscopeError as error:
            self.notes["sublayers"] = f"not found: {error}"
            return
        if not self._sublayers:
            self.notes["sublayers"] = "not found: no outputs of modules add up to the hidden states"

    def _current_parts(self) -> ModelParts:
        """Those that are known, unless modules were added or replaced."""
        modules = [*map(id, _all_modules(self._model))]
        if modules != self._modules:
            self._parts = ModelParts.of(self._model, self._options.tracing.get("blocks"))
            self._modules = modules
        return self._parts

    def _tracing(self) -> dict[str, Any]:
        return {**self._options.tracing, "token_mask": _to(self._options.token_mask, self._device)}

    @property
    def _device(self) -> torch.device:
        parameter = next(self._model.parameters(), None)
        return torch.device("cpu") if parameter is None else parameter.device

    def _on_device(self, inputs: Any) -> Any:
        """A copy on the device of the model, which may write to it."""
        return _to(inputs, self._device, copy=True)


def _nothing(_layers: int) -> Any:
    return ProbeFigures(0, pooling=MEAN)


def _only_scores(layer_record: LayerRecord) -> AttentionScores | None:
    scores = layer_record.heard or layer_record.fused
    return scores[0] if len(scores) == 1 else None


def _uniform(scores: AttentionScores, token_mask: Tensor | None) -> tuple[float, bool]:
    """Entropy of uniform attention over the visible keys, and whether the mask is causal."""
    keys = visible_keys(scores, token_mask)[:, 0].double()
    real = keys > 0
    entropies = torch.where(real, keys.clamp_min(1).log(), 0.0).sum(-1) / real.sum(-1).clamp_min(1)
    seen = keys[0][real[0]].tolist() or [0.0]
    return float(entropies.quantile(0.5)), seen[0] == 1 < seen[-1]


def _to(value: Any, device: torch.device, *, copy: bool = False) -> Any:
    """Tensors on a device, also inside a mapping or a sequence."""
    if isinstance(value, Tensor):
        return value.detach().to(device, copy=copy)
    if isinstance(value, Mapping):
        return {name: _to(part, device, copy=copy) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_to(part, device, copy=copy) for part in value]
    return value


def _tensors(inputs: Any) -> list[Tensor]:
    parts = inputs.values() if isinstance(inputs, Mapping) else inputs
    parts = [inputs] if isinstance(inputs, Tensor) else parts
    return [part for part in parts if isinstance(part, Tensor) and part.ndim]


def _batch_of(inputs: Any) -> int:
    """The number of samples if the first axis of every tensor has it; 0 otherwise."""
    sizes = {len(tensor) for tensor in _tensors(inputs)}
    return sizes.pop() if len(sizes) == 1 else 0


def _rows_of(inputs: Any, rows: slice, samples: int) -> Any:
    """Some samples of the inputs."""
    if isinstance(inputs, Tensor):
        return inputs[rows] if inputs.ndim and len(inputs) == samples else inputs
    if isinstance(inputs, Mapping):
        return {name: _rows_of(part, rows, samples) for name, part in inputs.items()}
    if isinstance(inputs, list | tuple):
        return [_rows_of(part, rows, samples) for part in inputs]
    return inputs


def _all_modules(model: nn.Module) -> list[nn.Module]:
    """Each as often as it is registered."""
    return [module for _, module in model.named_modules(remove_duplicate=False)]
