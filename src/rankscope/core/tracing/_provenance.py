"""Where figures came from: what would give the same numbers again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from rankscope.arguments import checked
from rankscope.core.network import Network
from rankscope.core.tracing._digest import digest as digest
from rankscope.core.tracing._memory import Memory
from rankscope.core.weights import weights_digest
from rankscope.errors import InputError
from rankscope.process.versions import versions


@checked
@dataclass(frozen=True)
class Provenance:
    """Where a trace came from; two with equal provenance have equal numbers.

    One thing may go unnoticed: single weights of a model that was traced before, written past
    PyTorch's count of writes (through ``.data`` or NumPy).

    ``weights`` names the numbers in every parameter and buffer, ``structure`` what the model is
    made of beside them, ``inputs`` what it was given; ``settings`` says what was measured and how,
    and what was decided about the model on the way. What cannot be seen does not count: globals
    that a function reads, and what modules keep in objects of classes of their own.
    """

    model: str
    spec: str | None = None
    seed: int | None = None
    """The one the weights were drawn with, if they are still the same."""
    versions: dict[str, str] = field(default_factory=versions)
    notes: dict[str, str] = field(default_factory=dict)
    network: str | None = None
    """The whole spec in words, where there is one."""
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
        known: Memory | None = None,
    ) -> Self:
        """What is known of a model and of what it is given.

        ``known`` is what was read of the model already, if it was.

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
        known = Memory.of(model) if known is None else known
        tensors, digests = known.tensors.values(), known.digests
        masks = {"token_mask": token_mask, "measured": measured}
        named = {name: digest(mask) for name, mask in masks.items() if mask is not None}
        found: dict[str, Any] = {
            "weights": known.once("weights", lambda: weights_digest(digests)),
            "dtype": known.once("dtype", lambda: _each(t.dtype for t in tensors if _is_real(t))),
            "device": known.once("device", lambda: _each(t.device.type for t in tensors)),
            "structure": known.structure,
            "inputs": None if inputs is None else digest(inputs),
            "settings": {**named, **_arithmetic(), **(settings or {})},
        }
        if not isinstance(model, Network):
            return cls(type(model).__name__, **found)
        spec, seed = model.spec, model.drawn_with(digests)
        words = spec.describe()
        return cls(model.name, spec.digest(seed=seed), seed, network=words, **found)

    @classmethod
    def joined(cls, parts: Sequence[Self], *, of_draws: bool = False) -> Self:
        """That of several batches as one; what they note or decide differently is kept of each.

        ``of_draws`` joins those of several networks that were drawn alike.
        """
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
                    f"traces of {first.model} and {part.model} with other weights, or made in "
                    "another way, cannot be joined; join those of one model."
                )
        given = [part.inputs for part in parts]
        whole = given[0] if len(parts) == 1 else digest(given)
        settings = _merged([part.settings for part in parts])
        for name in ("token_mask", "measured"):
            if ";" in settings.get(name, ""):
                settings[name] = digest([part.settings.get(name) for part in parts])
        notes = _merged([part.notes for part in parts])
        return replace(first, inputs=whole, settings=settings, notes=notes)


def _merged(parts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    found: dict[str, dict[str, None]] = {}
    for part in parts:
        for kind, words in part.items():
            found.setdefault(kind, {})[words] = None
    return {kind: "; ".join(each) for kind, each in found.items()}


def _is_real(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _each(values: Any) -> str:
    return ", ".join(sorted({str(value).removeprefix("torch.") for value in values})) or "none"


def _arithmetic() -> dict[str, str]:
    """PyTorch's switches that change every number, where they are not as they are by default."""
    found = {}
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            found[f"autocast on {device}"] = str(torch.get_autocast_dtype(device))
    precision = torch.get_float32_matmul_precision()
    return found if precision == "highest" else {**found, "float32 products": precision}
