"""The model of a monitor and its probe, as users pass them, and what is known about both."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor, nn

from rankscope.core.network import Network, drawable
from rankscope.core.prediction import predict
from rankscope.core.tracing import before_compilation
from rankscope.errors import InputError, KindError, RankscopeError
from rankscope.models.calls import as_network, is_transformers_model, read_inputs
from rankscope.monitor._history import Place
from rankscope.monitor._names import MONITORED

_TARGETS: Final = ("labels", "label", "label_ids")
"""Inputs that a loss needs, and no hidden state depends on."""
_MOST_PREDICTED: Final = 1_000_000_000
"""Parameters up to which a model is converted to predict its design, unless that is asked for."""
_DRAWS: Final = 8
_SAMPLES: Final = 2
"""Random networks, and samples of the probe, of a prediction."""
_MOST_TOKENS: Final = 512
"""Tokens to which texts of a probe are cut."""


class Subject(NamedTuple):
    """A model and its probe: ``body`` runs on ``inputs``, ``model`` holds what is trained."""

    model: nn.Module
    body: nn.Module
    inputs: Any


def read_subject(model: Any, probe: Any, tokenizer: Any) -> Subject:
    """What users pass as one model and the arguments of its forward pass.

    The model may be compiled, inside ``DistributedDataParallel``, or what ``rankscope.load``
    returns. A language model runs without its head, of which no figure is measured.
    """
    original = getattr(model, "original", None)
    if isinstance(original, nn.Module) and not isinstance(model, nn.Module):  # ``Loaded``
        source = read_inputs(probe)
        texts = None if source.texts is None else list(source.texts)
        inputs = model.arguments(texts or source.tensor, token_mask=source.token_mask)
        return Subject(original, model.body, inputs)
    if not isinstance(model, nn.Module):
        raise KindError(
            f"model: got {type(model).__name__}, expected a torch.nn.Module, or what "
            "rankscope.load returns."
        )
    model = _bare(model)
    _refuse_parallel(model)
    return Subject(model, _body(model), _read_probe(model, probe, tokenizer))


def is_shard(parameter: Tensor) -> bool:
    """Whether a parameter is a part of one that is divided over processes."""
    return hasattr(parameter, "device_mesh")


def is_sharded(model: nn.Module) -> bool:
    """Whether parameters are divided over processes (FSDP2, tensor parallel)."""
    return any(map(is_shard, model.parameters()))


def class_name(model: nn.Module) -> str:
    """The class of a model, as it is called without FSDP2, which derives one of its own."""
    kind = type(model)
    sharded = hasattr(model, "set_requires_gradient_sync")
    return (kind.__bases__[-1] if sharded else kind).__name__


def find_classes(model: nn.Module) -> int | None:
    """K of a loss that begins at ln K: the vocabulary or labels of a model of Transformers."""
    if hasattr(model, "get_base_model"):  # adapters of PEFT
        model = cast(nn.Module, cast(Any, model).get_base_model())
    config, kind = getattr(model, "config", None), type(model).__name__
    if not is_transformers_model(model):
        return None
    if kind.endswith(("ForCausalLM", "ForMaskedLM", "ForConditionalGeneration", "LMHeadModel")):
        vocabulary = getattr(config, "vocab_size", None)
        return vocabulary if isinstance(vocabulary, int) else None
    if kind.endswith("Classification") and getattr(config, "problem_type", None) in (
        None, "single_label_classification",
    ):  # fmt: skip
        labels = getattr(config, "num_labels", 0)
        return labels if labels > 1 else None
    return None


def find_untrained(blocks: Sequence[nn.Module]) -> bool | None:
    """Whether weights are as drawn: the gains of all norms are constant; None without norms."""
    gains = [
        parameter
        for block in blocks
        for name, parameter in block.named_parameters()
        if name.endswith("weight") and parameter.ndim == 1 and parameter.numel() > 1
    ]
    with torch.no_grad():
        # Of a sharded gain, this process's part tells as much.
        parts = [cast(Any, gain).to_local() if is_shard(gain) else gain for gain in gains]
        parts = [part for part in parts if part.numel()]
        if not parts or any(part.is_meta for part in parts):
            return None
        return all(bool((part == part[0]).all()) for part in parts)


def predicted_bands(
    subject: Subject, token_mask: Tensor | None, layers: int, *, wanted: bool | None
) -> tuple[dict[Place, tuple[float, float]], str]:
    """The 10 to 90 % band of random networks of the model's design; or why there is none.

    ``wanted`` None: unless the model is very large, or divided over processes.
    """
    parameters = sum(parameter.numel() for parameter in subject.model.parameters())
    if wanted is False:
        return {}, "not asked for"
    if is_sharded(subject.model):
        return {}, "the model is divided over processes"
    if wanted is None and parameters > _MOST_PREDICTED:
        return {}, f"the model has {parameters:,} parameters; ask for it with predict=True"
    if not isinstance(subject.model, Network) and not is_transformers_model(subject.model):
        return {}, "designs of Transformers' models and of Networks are known alone"
    try:
        with torch.random.fork_rng(devices=[]):
            network, x, mask = as_network(subject.body, subject.inputs, token_mask)
            x, mask = x[:_SAMPLES].cpu().float(), None if mask is None else mask[:_SAMPLES].cpu()
            prediction = predict(drawable(network), x, draws=_DRAWS, token_mask=mask)
    except (RankscopeError, RuntimeError) as error:
        return {}, str(error).rstrip(".")
    if prediction.layers != layers:
        return {}, f"{prediction.layers} layers are predicted and {layers} run"
    bands: dict[Place, tuple[float, float]] = {}
    for metric in MONITORED.values():
        if metric.predicted in prediction.metrics:
            band = prediction.band(metric.predicted)
            for layer, (low, high) in enumerate(
                zip(band.low.tolist(), band.high.tolist(), strict=True)
            ):
                if math.isfinite(low) and math.isfinite(high):
                    bands[metric.name, layer] = (low, high)
    return bands, ""


def _bare(model: nn.Module) -> nn.Module:
    """The model inside ``torch.compile`` and ``DistributedDataParallel``, in any order."""
    inner = before_compilation(model)
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    if isinstance(inner, wrappers):
        return _bare(inner.module)
    return inner


def _body(model: nn.Module) -> nn.Module:
    """The model without its head, where it is a part by itself and not sharded."""
    if not is_transformers_model(model) or is_sharded(model):
        return model
    inner = getattr(model, str(getattr(model, "base_model_prefix", "")), None)
    return inner if isinstance(inner, nn.Module) else model


def _refuse_parallel(model: nn.Module) -> None:
    """Raise for wrappers that hold the weights in another form."""
    for module in model.modules():
        kind = type(module)
        if kind.__name__ == "FullyShardedDataParallel":
            raise KindError(
                "FSDP1 flattens parameters, so that layers cannot be told apart; use "
                "torch.distributed.fsdp.fully_shard (FSDP2)."
            )
        if kind.__module__.startswith("torch.distributed.pipelining"):
            raise KindError(
                "a pipeline runs part of the layers in each process, so that no probe runs through "
                "the model; only live mode can observe one stage: rankscope.monitor.LiveWatch."
            )
    if any(getattr(parameter, "ds_id", None) is not None for parameter in model.parameters()):
        raise KindError(
            "DeepSpeed ZeRO stage 3 keeps parameters elsewhere between its own passes; use stages "
            "1 or 2, or FSDP2."
        )


def _read_probe(model: nn.Module, probe: Any, tokenizer: Any) -> Any:
    """Texts, rows of ids, a batch of a loader or tensors as arguments of the model."""
    if isinstance(probe, Mapping):
        inputs = {name: part for name, part in probe.items() if name not in _TARGETS}
        if not inputs:
            raise InputError(f"the probe has {', '.join(probe) or 'nothing'} and no inputs.")
        shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
        if shift is not None and "labels" in probe and "decoder_input_ids" not in inputs:
            inputs["decoder_input_ids"] = shift(torch.as_tensor(probe["labels"]))
        return {name: _as_tensor(part) for name, part in inputs.items()}
    texts = [probe] if isinstance(probe, str) else probe
    if isinstance(texts, list | tuple) and texts and all(isinstance(text, str) for text in texts):
        if tokenizer is None:
            raise InputError(
                "the probe is texts, which need the tokenizer of the model: Monitor(..., "
                "tokenizer=tokenizer); or pass a batch of token ids."
            )
        longest = min(int(getattr(tokenizer, "model_max_length", _MOST_TOKENS)), _MOST_TOKENS)
        rows = tokenizer(list(texts), truncation=True, max_length=longest)["input_ids"]
        return _ids(model, rows)
    if isinstance(probe, list) and not any(isinstance(part, Tensor) for part in probe):
        return _ids(model, probe)
    if not isinstance(probe, Tensor | tuple | list) or (
        not isinstance(probe, Tensor) and not probe
    ):
        raise KindError(
            f"probe: got {type(probe).__name__}, expected texts, token ids, or a batch as the "
            "model takes it: a tensor, a mapping or a tuple."
        )
    return probe


def _ids(model: nn.Module, rows: Any) -> Any:
    _, tensor, mask = read_inputs(rows)
    if mask is None or not is_transformers_model(model):
        if mask is not None:
            raise InputError(
                "rows of the probe have different lengths, and how this model takes padding is not "
                "known; pass a batch as it takes it."
            )
        return tensor
    assert tensor is not None
    return {"input_ids": tensor, "attention_mask": mask.long()}


def _as_tensor(part: Any) -> Any:
    if isinstance(part, list) and part and not isinstance(part[0], str):
        try:
            return torch.as_tensor(part)
        except (TypeError, ValueError, RuntimeError):
            raise InputError(
                "the probe has rows of different lengths; pad them, or pass texts or rows of ids."
            ) from None
    return part
