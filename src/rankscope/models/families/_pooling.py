"""How a model makes one vector of a text or an image: its own pooling, or the usual one.

A folder of sentence-transformers says so in ``modules.json``, which is read as JSON, without that
package and without pickle. Towers of CLIP and SigLIP have a pooling head, vision models a class
token. For all others ``usual_pooling`` decides.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from rankscope.core.pooling import (
    CLASS,
    LAST,
    MAXIMUM,
    MEAN,
    ROOT,
    WEIGHTED,
    Pooling,
    Step,
    apply,
    pool,
    usual_pooling,
)
from rankscope.core.tracing import captured_calls, evaluating
from rankscope.models.families._family import Family, Original, config_of
from rankscope.models.families._sources import hub_is_reachable
from rankscope.models.families._verification import Probe, sees_images, text_arguments
from rankscope.models.recognition import (
    TOLERANCES,
    relative_error,
)
from rankscope.process import require
from rankscope.streams import stream

_T = TypeVar("_T")

_MODES: Final = {
    "cls": CLASS,
    "max": MAXIMUM,
    "mean": MEAN,
    "mean_sqrt_len": ROOT,
    "weightedmean": WEIGHTED,
    "lasttoken": LAST,
}
"""Pooling modes by the names of sentence-transformers, in the order in which it joins them."""
_ACTIVATIONS: Final = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": functional.relu,
    "GELU": functional.gelu,
    "SiLU": functional.silu,
    "Sigmoid": torch.sigmoid,
}
_CONTRASTIVE: Final = re.compile("clip|siglip")
_LEADING: Final = (
    "cls_token",
    "class_token",
    "class_embedding",
    "distillation_token",
    "register_tokens",
)
"""What vision models call the vectors that they put before the patches."""
_PADDED: Final = (
    "It was trained on texts padded to one length and takes the last position; here texts are read "
    "without padding, and the last token takes its place."
)
_NOT: Final = "is not supported"
_INSTEAD: Final = "the mean of the tokens is used instead."
_PROBED: Final = 8
"""Tokens on which a pooling head is tried."""


def leading_tokens(body: nn.Module) -> int:
    """How many class, distillation and register tokens stand before the patches of an image."""
    sizes = {
        path: parameter.shape[-2] if parameter.ndim > 1 else 1
        for path, parameter in body.named_parameters()
        if path.rpartition(".")[2] in _LEADING
    }
    return sum(sizes.values())


def pooling_of(
    original: Original,
    family: Family,
    probe: Probe,
    *,
    causal: bool,
    drawn: int | None = None,
) -> Pooling:
    """The pooling of a model; ``drawn`` is the seed of one at initialisation.

    What follows the last block is found by trying: the norm that turns its output into the
    model's hidden states, and of a pooling head the tokens it reads.
    """
    body = family.body_of(original)
    images = sees_images(body)
    try:
        arguments = probe.arguments if images else _text_probe(family, body) or probe.arguments
        state, output, called = _run(family, body, arguments)
    except Exception:  # a foreign model that takes no other input than what it was verified on
        state, output, called = _run(family, body, probe.arguments)
    first = output[0] if isinstance(output, tuple | list) else output
    norm = _norm_of(state, getattr(output, "last_hidden_state", first), called)
    stated = None if images else _stated(original, state.shape[-1], drawn)
    if stated is not None:
        modes, steps, words, notes = stated
        if not modes:
            return Pooling((MEAN,), MEAN, norm, notes=notes, own=False)
        return Pooling(modes, words, norm, steps=steps, notes=notes)
    kinds = (getattr(config_of(model), "model_type", "") or "" for model in (original, body))
    pooled = getattr(output, "pooler_output", None)
    if pooled is not None and any(_CONTRASTIVE.search(kind) for kind in kinds):
        found = _head_of(state, pooled, called)
        if found is not None:
            padded = not images and not causal
            return replace(_projected(found, original, images), notes=(_PADDED,) if padded else ())
    if images and leading_tokens(body):
        return Pooling((CLASS,), f"{CLASS} after the last norm", norm)
    return replace(usual_pooling(causal=causal), norm=norm)


def _text_probe(family: Family, body: Original) -> dict[str, Any] | None:
    """Texts without padding that end in the end token, by which CLIP finds its vector."""
    config = config_of(body)
    words = getattr(config, "vocab_size", None)
    if not words or not family.takes(body, "input_ids"):
        return None
    end = getattr(config, "eos_token_id", None)
    end = end[0] if isinstance(end, list) else end
    # Older configurations of CLIP state 2, and the model takes the largest id instead.
    end = words - 1 if end is None or end == 2 or not 0 <= end < words else end
    tokens = min(_PROBED, family.most_tokens(body) or _PROBED)
    ids = torch.randint(0, words - 1, (2, tokens), generator=stream(0, "pooling probe"))
    ids[:, :-1][ids[:, :-1] == end] = (end + 1) % (words - 1)
    ids[:, -1] = end
    ids = ids.to(next(body.parameters()).device)
    return text_arguments(family, body, ids, torch.ones_like(ids, dtype=torch.bool))


def _run(
    family: Family, body: Original, arguments: Mapping[str, Any]
) -> tuple[Tensor, Any, list[nn.Module]]:
    """The last block's output, the body's, and the modules that ran after that block."""
    blocks = family.layers_of(body)
    inside = {module for block in blocks for module in block.modules()}
    around = [
        module
        for module in body.modules()
        if module not in inside and inside.isdisjoint(module.modules())
    ]
    outputs: list[Any] = []
    with evaluating(body), torch.no_grad():
        calls = captured_calls([*around, blocks[-1]], lambda: outputs.append(body(**arguments)))
    last = max(at for at, call in enumerate(calls) if call.module is blocks[-1])
    called = list(dict.fromkeys(call.module for call in calls[last + 1 :]))
    return family.batch_first(calls[last].output), outputs[0], called


def _agrees(value: Tensor, wanted: Tensor) -> bool:
    if value.shape != wanted.shape:
        return False
    return relative_error(value.unsqueeze(1), wanted.unsqueeze(1), None) <= TOLERANCES[wanted.dtype]


def _norm_of(state: Tensor, wanted: object, called: Sequence[nn.Module]) -> nn.Module | None:
    """The module that turns the last block's output into the model's hidden states."""
    if not isinstance(wanted, Tensor) or wanted.shape != state.shape:
        return None
    if _agrees(state.flatten(1), wanted.flatten(1)):
        return None
    for module in called:
        value = _tried(module, state)
        if value is not None and _agrees(value.flatten(1), wanted.flatten(1)):
            return module
    return None


@torch.no_grad()
def _tried(module: nn.Module, x: Tensor) -> Tensor | None:
    try:
        value = apply(module, x)
    except Exception:  # a foreign module on a tensor it is not made for
        return None
    return value if isinstance(value, Tensor) else None


def _head_of(state: Tensor, pooled: Tensor, called: Sequence[nn.Module]) -> Pooling | None:
    """The tokens, norm and head by which a tower's states become its ``pooler_output``."""
    everyone = torch.ones(state.shape[:2], dtype=torch.bool, device=state.device)
    for head, norm in product((None, *called), (None, *called)):  # without a head first
        normed = state if norm is None else _tried(norm, state)
        if normed is None or normed.shape != state.shape:
            continue
        if head is not None:
            value = _tried(head, normed)
            if value is not None and _agrees(value, pooled):
                return Pooling((), "pooling head over all its tokens", norm, head)
        for mode in (CLASS, LAST, MEAN):
            value = pool(normed, everyone, mode)
            if head is not None:
                value = _tried(head, value)
            if value is not None and _agrees(value, pooled):
                words = mode + " after the last norm" * (norm is not None)
                steps = () if head is None else (_through(head),)
                return Pooling(
                    (mode,), words + ", through its head" * bool(steps), norm, None, steps
                )
    return None


def _through(module: nn.Module) -> Step:
    return lambda pooled: apply(module, pooled)


def _projected(pooling: Pooling, original: Original, images: bool) -> Pooling:
    """The same with the projection into the space that texts and images share."""
    name = "visual_projection" if images else "text_projection"
    projection = getattr(original, name, None)
    if not isinstance(projection, nn.Module):
        return pooling
    words = f"{pooling.words}, through {name}"
    return replace(pooling, words=words, steps=(*pooling.steps, _through(projection)))


_Stated = tuple[tuple[str, ...], tuple[Step, ...], str, tuple[str, ...]]
"""Modes, steps, words and notes."""


class _UnsupportedModuleError(Exception):
    """What sentence-transformers would do and we do not; the message is part of a note."""


@dataclass(frozen=True)
class _Files:
    """The files beside a model's weights, in its folder or on the Hub."""

    place: str
    commit: str | None

    def find(self, name: str) -> Path | None:
        """The path of a file, downloaded if need be; None if there is none."""
        folder = Path(self.place).expanduser()
        if folder.is_dir():
            return folder / name if (folder / name).is_file() else None
        try:
            found = require("transformers.utils.hub").cached_file(
                self.place, name, revision=self.commit, local_files_only=not hub_is_reachable()
            )
        except (OSError, ValueError):  # it has no such file, or is not on the Hub at all
            return None
        return None if found is None else Path(found)

    def read(self, name: str, kind: type[_T]) -> _T | None:
        """The contents of a JSON file; None unless they are of that kind."""
        path = self.find(name)
        try:
            value = None if path is None else json.loads(path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        return value if isinstance(value, kind) else None

    def config(self, folder: str) -> dict[str, Any]:
        """The configuration of a module, whose folder has to be inside the model's."""
        inside = PurePosixPath(folder)
        if inside.is_absolute() or ".." in inside.parts:
            raise _UnsupportedModuleError(f"a folder outside the model's ({folder[:40]!r})")
        config = self.read(str(inside / "config.json"), dict)
        if config is None:
            raise _UnsupportedModuleError(f"{folder[:40]}/config.json, which is missing or damaged")
        return config


def _stated(original: Original, width: int, drawn: int | None) -> _Stated | None:
    """What ``modules.json`` says; None if there is none. Without modes, the notes say why."""
    config = config_of(original)
    files = _Files(getattr(config, "name_or_path", "") or "", getattr(config, "_commit_hash", None))
    listed = files.read("modules.json", list) if files.place else None
    if listed is None:
        return None
    try:
        modes, steps, words = _chain(files, listed, width, drawn)
    except _UnsupportedModuleError as error:
        return (), (), "", (f"modules.json asks for {error}; {_INSTEAD}",)
    if not modes:
        return (), (), "", (f"modules.json names no pooling; {_INSTEAD}",)
    stated = files.read("config_sentence_transformers.json", dict) or {}
    prompt = stated.get("default_prompt_name")
    unused = f"Its default prompt ({str(prompt)[:40]!r}) is not put before the texts."
    return modes, steps, f"{words} (modules.json)", (unused,) if prompt else ()


def _chain(
    files: _Files, listed: list[Any], width: int, drawn: int | None
) -> tuple[tuple[str, ...], tuple[Step, ...], str]:
    """Modes, steps and words of the modules that follow the transformer."""
    modes: tuple[str, ...] = ()
    steps: list[Step] = []
    words: list[str] = []
    for module in listed:
        entry = module if isinstance(module, dict) else {}
        kind, folder = str(entry.get("type", "")).rpartition(".")[2], str(entry.get("path", ""))
        if kind in ("Transformer", "Dropout") and not words:
            continue
        if kind == "Pooling" and not modes:
            modes = _modes(files.config(folder))
            width *= len(modes)
            words.append(" and ".join(modes))
        elif kind == "Dense" and modes:
            step, width, said = _dense(files, folder, width, drawn)
            steps.append(step)
            words.append(said)
        elif kind == "Normalize" and modes:
            steps.append(lambda pooled: functional.normalize(pooled, dim=-1))
            words.append("divided by its length")
        elif kind != "Dropout":
            raise _UnsupportedModuleError(f"{kind[:40] or 'a module without a type'}, which {_NOT}")
    return modes, tuple(steps), ", ".join(words)


def _modes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The modes of a pooling module, by flags or by a name or a list of names."""
    given = config.get("pooling_mode") or [
        key.removeprefix("pooling_mode_").removesuffix("_token")
        for key, value in config.items()
        if key.startswith("pooling_mode_") and value is True
    ]
    listed = given if isinstance(given, list) else [given]
    named = [str(name).removesuffix("_tokens") for name in listed]
    unknown = [name for name in named if name not in _MODES]
    if unknown:
        raise _UnsupportedModuleError(f"the pooling mode {unknown[0][:40]!r}, which {_NOT}")
    return tuple(mode for name, mode in _MODES.items() if name in named)


def _dense(files: _Files, folder: str, width: int, drawn: int | None) -> tuple[Step, int, str]:
    """A linear map with its activation, the width after it, and its words."""
    config = files.config(folder)
    name = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    activation = _ACTIVATIONS.get(name)
    if activation is None:
        raise _UnsupportedModuleError(f"the activation {name[:40]!r}, which {_NOT}")
    path = files.find(f"{folder}/model.safetensors")
    if path is None:
        raise _UnsupportedModuleError(f"weights that {folder[:40]} does not hold as safetensors")
    safetensors = require("safetensors")
    try:
        tensors = require("safetensors.torch").load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise _UnsupportedModuleError(f"{folder[:40]}/model.safetensors ({error})") from None
    weight, bias = tensors.get("linear.weight"), tensors.get("linear.bias")
    fits = weight is not None and weight.ndim == 2 and weight.shape[1] == width
    if weight is None or not fits or (bias is not None and bias.shape != weight.shape[:1]):
        raise _UnsupportedModuleError(
            f"a linear map of other than {width} features in {folder[:40]}"
        )
    if drawn is not None:  # as torch draws linear maps
        generator, bound = stream(drawn, f"pooling {folder}"), width**-0.5
        weight = torch.empty(weight.shape).uniform_(-bound, bound, generator=generator)
        if bias is not None:
            bias = torch.empty(bias.shape).uniform_(-bound, bound, generator=generator)

    def step(pooled: Tensor) -> Tensor:
        values = [None if part is None else part.to(pooled) for part in (weight, bias)]
        assert values[0] is not None
        output: Tensor = activation(functional.linear(pooled, values[0], values[1]))
        return output

    said = f"a linear map to {weight.shape[0]} features"
    return step, weight.shape[0], said if name == "Identity" else f"{said} with {name}"
