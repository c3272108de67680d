"""The record of what produced a trace, so that the same numbers can be computed again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from rankscope.arguments import checked
from rankscope.core.network import Network
from rankscope.core.tracing._described import Description, begin_digest, digest
from rankscope.core.weights import begin_digests, named_tensors, weights_digest
from rankscope.errors import InputError
from rankscope.process import versions


@checked
@dataclass(frozen=True)
class Provenance:
    """Where a trace came from.

    >>> import torch
    >>> from rankscope import Network, Spec, trace
    >>> net = Network.random(Spec(2, 2, 8), seed=7)
    >>> made = trace(net, torch.ones(1, 4, 8)).provenance
    >>> made.model, made.seed
    ('Network', 7)

    Equal provenance means equal numbers on one machine with as many threads, except for what
    ``settings["not covered"]`` names and what code reads from globals other than numbers, texts,
    tensors and functions of its own module.

    ``weights`` is a digest of every parameter and buffer, ``structure`` of the rest of the model
    (its settings, code and hooks, and the hooks and modes that act on every model), ``inputs`` of
    the input; ``settings`` states what was measured and how, and what was inferred about the
    model. Everything is recorded when the run begins.

    ``settings["not covered"]`` lists values of which only the type or shape is known: a generator,
    an object of a compiled extension, weights on disk. Two runs that differ only in these have
    equal provenance and may have different numbers.
    """

    model: str
    spec: str | None = None
    seed: int | None = None
    """The seed of the weights, if they are unchanged since initialisation."""
    versions: dict[str, str] = field(default_factory=versions)
    notes: dict[str, str] = field(default_factory=dict)
    network: str | None = None
    """The whole spec in words, if there is one."""
    weights: str | None = None
    dtype: str | None = None
    device: str | None = None
    structure: str | None = None
    inputs: str | None = None
    settings: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        inputs: Any = None,
        *,
        token_mask: Tensor | None = None,
        measured: Tensor | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Self:
        """The provenance of a model and its inputs at this moment.

        >>> import torch
        >>> from rankscope import Network, Spec
        >>> from rankscope.core.tracing import Provenance
        >>> net, x = Network.random(Spec(2, 2, 8), seed=3), torch.zeros(1, 4, 8)
        >>> origin = Provenance.of(net, x)
        >>> origin.seed, origin.dtype, origin == Provenance.of(net, x), len(origin.weights)
        (3, 'float32', True, 12)
        >>> origin == Provenance.of(net, x + 1)
        False
        """
        masks = {"token_mask": token_mask, "measured": measured}
        return cls(**vars(ModelRecord.of(model).begin(inputs, masks, settings or {})()))

    @classmethod
    def joined(cls, parts: Sequence[Self], *, of_draws: bool = False) -> Self:
        """The provenance of several batches as one; differing notes and settings are all kept.

        ``of_draws`` joins the provenance of several random networks of one distribution.
        """
        if not parts:
            raise InputError("there is no provenance to join; pass one or more.")
        first = parts[0]
        if of_draws:
            seeds = {part.seed for part in parts}
            drawn: dict[str, Any] = {
                "weights": digest([part.weights for part in parts]),
                "seed": seeds.pop() if len(seeds) == 1 else None,
                "spec": first.spec if len({part.spec for part in parts}) == 1 else None,
            }
            parts = [replace(part, **drawn) for part in parts]
            first = parts[0]
        for part in parts:
            same: dict[str, Any] = {
                "inputs": first.inputs,
                "settings": first.settings,
                "notes": first.notes,
            }
            if replace(part, **same) != first:
                raise InputError(
                    f"traces of {first.model} and {part.model} with different weights or settings "
                    "cannot be joined; join traces of one model."
                )
        inputs = [part.inputs for part in parts]
        joined_inputs = inputs[0] if len(parts) == 1 else digest(inputs)
        settings = _merged([part.settings for part in parts])
        for name in ("token_mask", "measured"):
            if ";" in settings.get(name, ""):
                settings[name] = digest([part.settings.get(name) for part in parts])
        notes = _merged([part.notes for part in parts])
        return replace(first, inputs=joined_inputs, settings=settings, notes=notes)


def _merged(parts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    words: dict[str, dict[str, None]] = {}
    for part in parts:
        for kind, word in part.items():
            words.setdefault(kind, {})[word] = None
    return {kind: "; ".join(distinct) for kind, distinct in words.items()}


@dataclass(frozen=True)
class ModelRecord:
    """What a provenance says about a model: every weight is read when it is made, so that later
    changes do not count."""

    facts: dict[str, Any]
    drawn: tuple[Any, int | None, Mapping[str, str]] | None
    """Of a ``Network``: its spec, its seed, and the digests of the weights that were drawn."""
    finish_weights: Callable[[], dict[str, str]]
    finish_structure: Callable[[], str]
    not_covered: tuple[str, ...]

    @classmethod
    def of(cls, model: nn.Module, tensors: Mapping[str, Tensor] | None = None) -> Self:
        """Of a model now; ``tensors`` are those of ``named_tensors``, if the caller has them."""
        tensors = named_tensors(model) if tensors is None else tensors
        name, drawn = type(model).__name__, None
        if isinstance(model, Network):
            name, drawn = model.name, (model.spec, model._seed, model._drawn)
        kinds = {tensor.dtype for tensor in tensors.values()}
        real = sorted(str(kind)[6:] for kind in kinds if kind.is_floating_point or kind.is_complex)
        devices = sorted({tensor.device.type for tensor in tensors.values()})
        facts = {
            "model": name,
            "dtype": ", ".join(real) or "none",
            "device": ", ".join(devices) or "none",
        }
        finish_weights, words = begin_digests(tensors), Description()
        finish_structure = words.begin([words.modules(model), words.around()])
        words.name_unread(tensors)
        not_covered = tuple(words.not_covered())
        return cls(facts, drawn, finish_weights, finish_structure, not_covered)

    def begin(
        self,
        inputs: Any,
        masks: Mapping[str, Tensor | None],
        settings: Mapping[str, str],
        not_covered: Sequence[str] = (),
    ) -> Callable[[], Provenance]:
        """The provenance of a run that is about to begin; only the returned function synchronises.

        ``settings`` may be extended until then; ``not_covered`` are further entries of that name.
        """
        of_inputs = Description()
        finish_inputs = None if inputs is None else of_inputs.begin(of_inputs.of(inputs, "inputs"))
        named = {name: begin_digest(mask) for name, mask in masks.items() if mask is not None}
        switches = arithmetic()
        missing = "; ".join((*self.not_covered, *of_inputs.not_covered(), *not_covered))

        def finish() -> Provenance:
            digests = self.finish_weights()
            facts = dict(self.facts)
            if self.drawn is not None:
                spec, seed, drawn_digests = self.drawn
                seed = seed if drawn_digests == digests else None
                facts |= {"seed": seed, "spec": spec.digest(seed=seed), "network": spec.describe()}
            digits = {name: finish_mask() for name, finish_mask in named.items()}
            said = {**digits, **switches, **settings}
            return Provenance(
                weights=weights_digest(digests),
                structure=self.finish_structure(),
                inputs=None if finish_inputs is None else finish_inputs(),
                settings={**said, "not covered": missing} if missing else said,
                **facts,
            )

        return finish


def arithmetic() -> dict[str, str]:
    """PyTorch's settings that change numbers, if they differ from the defaults."""
    settings = {}
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            settings[f"autocast on {device}"] = str(torch.get_autocast_dtype(device))
    backends: Any = torch.backends
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # set for one backend with the newer API, which this call does not support
        precision = f"{backends.cuda.matmul.fp32_precision} on cuda, "
        precision += f"{backends.mkldnn.matmul.fp32_precision} on cpu"
    if precision != "highest":
        settings["float32 products"] = precision
    kernels = {
        "flash attention": backends.cuda.flash_sdp_enabled(),
        "memory-efficient attention": backends.cuda.mem_efficient_sdp_enabled(),
        "attention by plain operations": backends.cuda.math_sdp_enabled(),
        "attention of cuDNN": backends.cuda.cudnn_sdp_enabled(),
        "fast path of nn.TransformerEncoder": backends.mha.get_fastpath_enabled(),
        "oneDNN": backends.mkldnn.enabled,
        "cuDNN": backends.cudnn.enabled,
    }
    if off := ", ".join(name for name, is_on in kernels.items() if not is_on):
        settings["kernels turned off"] = off
    if torch.get_default_dtype() != torch.float32:
        settings["default dtype"] = str(torch.get_default_dtype())
    return settings
