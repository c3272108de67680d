"""``load``: a Hub id, a folder, a model object or a built-in name → ``Loaded``."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.arguments import checked
from rankscope.core.checks import usable_device
from rankscope.errors import (
    InputError,
    KindError,
    RankscopeError,
    ShapeError,
    UnsupportedModelError,
    VerificationError,
)
from rankscope.models.checkpoints import gather, refuse_packed, resolve_checkpoint
from rankscope.models.families._architectures import family_of
from rankscope.models.families._family import Family, submodule
from rankscope.models.families._loaded import Loaded, Unconverted, build, fresh
from rankscope.models.families._sources import another_tokenizer, initialise, load_pretrained
from rankscope.models.families._verification import Probe, Verification, text_arguments
from rankscope.models.recognition import (
    TOLERANCES,
)


@checked
def load(
    source: str | Path | nn.Module,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    at_init: bool = False,
    seed: int = 0,
    pickled: bool = False,
    trust_remote_code: bool = False,
    device_map: Any = None,
    tokenizer: Any = None,
    tower: str | None = None,
    family: Family | None = None,
    probe: Tensor | Mapping[str, Any] | None = None,
) -> Loaded:
    """Load a model, build our network on its weights, and prove that the two are equal.

    >>> loaded = load("bert-base", at_init=True)
    >>> x, token_mask, _ = loaded.inputs(["Attention is not all you need."])

    ``source`` is a folder, a Hub id, a GGUF file, a transformers model, or with ``at_init=True``
    also a built-in name (``BUILTIN`` lists them): then the weights are random, drawn with ``seed``,
    and nothing is downloaded. The folder of a training run stands for its latest checkpoint, and
    ``FOLDER@1200`` for that of step 1200. A LoRA adapter is merged into its model, and weights in
    FP8, MXFP4 or GGUF's formats become floating point. Weights are read from safetensors;
    ``pickled=True`` also allows pickle files, read with ``weights_only=True``. Code that comes with
    a checkpoint runs only if ``trust_remote_code=True``. ``device_map`` is Accelerate's, for models
    larger than one device; what it offloads is read into memory if it fits.
    ``tokenizer`` is a folder, a Hub id or a tokeniser of transformers, for a model that comes
    without one or is to be given another's.

    Any architecture is tried: its blocks are recognised on a small random input and compared with
    the original, and the error names the layer and the part that have no known form. Of a model
    with several stacks of blocks the one that reads text is taken; ``tower`` is the path of another
    (``"vision_model"``). ``family`` describes an architecture with unusual names. ``probe`` is the
    input to compare on, token ids or keyword arguments, for a model whose configuration does not
    say what it reads.
    """
    return _convert(
        _open(
            source,
            device=device,
            dtype=dtype,
            revision=revision,
            at_init=at_init,
            seed=seed,
            pickled=pickled,
            trust_remote_code=trust_remote_code,
            device_map=device_map,
            tokenizer=tokenizer,
            tower=tower,
            family=family,
        ),
        seed=seed if at_init else None,
        probe=probe,
    )


def load_any(
    source: str | Path | nn.Module,
    *,
    at_init: bool = False,
    seed: int = 0,
    probe: Tensor | Mapping[str, Any] | None = None,
    **options: Any,
) -> Loaded | Unconverted:
    """``load`` where the model can be converted; otherwise the model as it is, and the reason."""
    opened = _open(source, at_init=at_init, seed=seed, **options)
    try:
        return _convert(opened, seed=seed if at_init else None, probe=probe)
    except (UnsupportedModelError, VerificationError) as error:
        return replace(opened, reason=error)
    except RankscopeError:  # such as weights that are not finite, which no diagnosis gets past
        raise
    except Exception as error:  # whatever a foreign forward pass raises on a probe
        why = f"its blocks could not be tried ({type(error).__name__}: {error})"
        return replace(opened, reason=UnsupportedModelError(f"{opened.name}: {why}."))


def _open(
    source: str | Path | nn.Module,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    at_init: bool = False,
    seed: int = 0,
    pickled: bool = False,
    trust_remote_code: bool = False,
    device_map: Any = None,
    tokenizer: Any = None,
    tower: str | None = None,
    family: Family | None = None,
) -> Unconverted:
    """A model from its source, before it is converted."""
    if dtype is not None and dtype not in TOLERANCES:
        known = ", ".join(str(each) for each in TOLERANCES)
        raise KindError(f"dtype={dtype!r} is none a model can be verified in; use {known}.")
    usable_device("device", device)
    if isinstance(source, nn.Module):
        if revision is not None or device_map is not None:
            raise InputError(
                "revision and device_map are about loading; a model is loaded already."
            )
        refuse_packed(source)
        model, processor, name = gather(source), None, type(source).__name__
        reads = another_tokenizer(tokenizer)
        if at_init:
            model = fresh(model, seed)
        elif model is source and (device is not None or dtype is not None):
            model = copy.deepcopy(source)  # the caller's model stays as it is
    else:
        if at_init and device_map is not None:
            raise InputError(
                "device_map is for pretrained weights; with at_init=True give a device."
            )
        options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
        name = resolve_checkpoint(str(source))
        if at_init:
            model, reads, processor = initialise(name, seed, options, tokenizer)
        else:
            options |= {"dtype": dtype or "auto", "device_map": device_map}
            model, reads, processor = load_pretrained(
                name, options, pickled=pickled, tokenizer=tokenizer
            )
            model = gather(model)
    model = _placed(model, device, dtype)
    described = family_of(model) if family is None else family
    if tower is not None:
        submodule(model, tower, "tower")
        described = replace(described, body=tower)
    reason = UnsupportedModelError(f"{name} is not converted.")
    return Unconverted(model, described, name, reason, reads, processor)


def _convert(
    opened: Unconverted, *, seed: int | None, probe: Tensor | Mapping[str, Any] | None
) -> Loaded:
    """Our network on the weights of a model, compared with it."""
    model, family = opened.original, opened.family
    return build(
        model,
        name=opened.name,
        tokenizer=opened.tokenizer,
        processor=opened.processor,
        seed=seed,
        family=family,
        tried_on=() if probe is None else (_given_probe(family, model, probe),),
    )


def _given_probe(family: Family, model: nn.Module, probe: Tensor | Mapping[str, Any]) -> Probe:
    """What a user wants the model to be compared on."""
    if isinstance(probe, Mapping):
        mask = probe.get("attention_mask")
        if mask is not None and not (isinstance(mask, Tensor) and mask.ndim == 2):
            raise InputError("the probe's attention_mask is not a tensor (batch, token).")
        return Probe(dict(probe), None if mask is None else mask.bool())
    ids = probe.dtype in (torch.int64, torch.int32) and probe.ndim == 2
    if not ids and not (probe.is_floating_point() and probe.ndim == 3):
        raise ShapeError(
            f"probe is {probe.dtype} of shape {tuple(probe.shape)}; expected token ids (batch, "
            "token), embeddings (batch, token, feature), or keyword arguments in a mapping."
        )
    mask = torch.ones(probe.shape[:2], dtype=torch.bool, device=probe.device)
    return Probe(text_arguments(family, family.body_of(model), probe, mask), mask)


def _placed(
    model: nn.Module, device: str | torch.device | None, dtype: torch.dtype | None
) -> nn.Module:
    """The model on a device and in a dtype; one that Accelerate spread out stays where it is."""
    if not any(True for _ in model.parameters()):
        raise InputError(f"{type(model).__name__} has no weights, so there is nothing to convert.")
    if getattr(model, "hf_device_map", None) is not None:
        found = next(model.parameters()).dtype
        if device is not None or dtype not in (None, found):
            raise UnsupportedModelError(
                f"a model that Accelerate spread over devices keeps its places and its {found}; "
                "give dtype together with device_map, and no device."
            )
        return model
    if device is None and dtype in (None, next(model.parameters()).dtype):
        return model
    # Rotary frequencies are float32 in every model; casting them to halves would bend the angles.
    kept = {
        (module, name): buffer.clone()
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name.endswith("inv_freq")
    }
    model = model.to(device=device, dtype=dtype)
    set_experts: Any = getattr(model, "set_experts_implementation", None)
    if dtype == torch.float64 and set_experts is not None:
        set_experts("eager")  # the fused kernels have no float64
    for (module, name), buffer in kept.items():
        setattr(module, name, buffer.to(getattr(module, name).device))
    return model


@checked
def verify(model: Loaded | nn.Module) -> Verification:
    """Compare every layer of our network with the original's; raise if one differs too much.

    >>> import transformers
    >>> small = transformers.GPT2Config(vocab_size=9, n_positions=9, n_embd=8, n_layer=2, n_head=2)
    >>> verify(transformers.GPT2Model(small)).worst < 1e-4
    True
    """
    return (model if isinstance(model, Loaded) else load(model)).verify()


@checked
def check(
    family: Family,
    model: nn.Module | None = None,
    *,
    probe: Tensor | Mapping[str, Any] | None = None,
) -> Verification:
    """Convert a model by a description, in float64, and compare every layer with the original's.

    >>> import transformers
    >>> from rankscope.models.families import check, family_of
    >>> small = transformers.GPT2Config(vocab_size=9, n_positions=9, n_embd=8, n_layer=2, n_head=2)
    >>> model = transformers.GPT2Model(small)
    >>> check(family_of(model), model).worst < 1e-10
    True

    ``model`` is by default the description's ``example``; ``probe`` is an input to compare on, as
    in ``load``. Raises an error that names the first layer and part where the description does not
    fit.
    """
    if model is None:
        if family.example is None:
            raise InputError(
                f"the description of {family.name} has no example; give one, or a model: "
                "check(family, model)."
            )
        model = family.asked("example", family.example)
    return load(model, family=family, probe=probe, dtype=torch.float64).verification
