"""The functions of ``rankscope.core`` for any model.

A function of the core takes a ``Network`` and its hidden states. The one of the same name here
takes ``(model, inputs, *, token_mask=None, ...)``: a model that ``rankscope.load`` can convert is
converted (and verified), and its inputs become the hidden states before its first block.
"""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from rankscope.arguments import series_as_list
from rankscope.core import deep as _deep
from rankscope.core import paths as _paths
from rankscope.core import prediction as _prediction
from rankscope.core import theory as _theory
from rankscope.core import tracing as _tracing
from rankscope.core.network import Network, Spec, drawable
from rankscope.errors import InputError, KindError, ShapeError

if TYPE_CHECKING:
    from rankscope.models.families import Loaded

    Model: TypeAlias = Network | Loaded | nn.Module
else:
    Model = "Network | Loaded | nn.Module"
Inputs = Tensor | np.ndarray[Any, Any] | Mapping[str, Any] | Sequence[Any] | str
"""Texts; token ids as lists, arrays or tensors, or as a tokeniser returns them; hidden states."""

Options = ParamSpec("Options")
Answer = TypeVar("Answer")


class ReadInputs(NamedTuple):
    """Inputs of any kind: texts, or else a tensor and which of its tokens are real (None: all)."""

    texts: tuple[str, ...] | None
    tensor: Tensor | None
    token_mask: Tensor | None

    @property
    def ids(self) -> list[list[int]] | None:
        """Token ids without padding, by sample; None for anything else."""
        if self.tensor is None or self.tensor.is_floating_point():
            return None
        mask = torch.ones_like(self.tensor) if self.token_mask is None else self.token_mask
        if self.tensor.ndim > 2 or mask.shape not in (self.tensor.shape, self.tensor.shape[-1:]):
            raise ShapeError(
                f"token ids have shape {tuple(self.tensor.shape)} and their token_mask "
                f"{tuple(mask.shape)}, expected (batch, token) of both."
            )
        rows = zip(self.tensor, mask.bool().expand_as(self.tensor), strict=True)
        return [row[real].tolist() for row, real in rows]


def read_inputs(inputs: Inputs, token_mask: Tensor | None = None) -> ReadInputs:
    """Inputs of any kind as texts or as one tensor.

    >>> read_inputs([[5, 6, 7], [8, 9]]).token_mask
    tensor([[ True,  True,  True],
            [ True,  True, False]])
    >>> read_inputs("A rose is a rose.").texts
    ('A rose is a rose.',)
    """
    if isinstance(inputs, str):
        return ReadInputs((inputs,), None, None)
    if isinstance(inputs, Mapping):
        if "input_ids" not in inputs:
            raise InputError(f"expected input_ids among the inputs, got {', '.join(inputs)}.")
        mask = inputs.get("attention_mask")
        mask = token_mask if mask is None else torch.as_tensor(mask).bool()
        return read_inputs(inputs["input_ids"], mask)
    if isinstance(inputs, Tensor):
        return ReadInputs(None, inputs, token_mask)
    inputs = series_as_list(inputs)
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "UO":  # texts
        inputs = inputs.tolist()
    if isinstance(inputs, np.ndarray):
        return ReadInputs(None, torch.from_numpy(inputs), token_mask)
    if not isinstance(inputs, Sequence) or not inputs:
        raise KindError(
            f"inputs: got {type(inputs).__name__}, expected texts, token ids, or a tensor with at "
            "least one sample."
        )
    if all(isinstance(text, str) for text in inputs):
        if token_mask is not None:
            raise InputError("texts are padded by the tokeniser; leave token_mask out.")
        return ReadInputs(tuple(inputs), None, None)
    try:
        rows = [torch.as_tensor(row) for row in inputs]
    except (TypeError, ValueError, RuntimeError) as error:
        raise KindError(f"inputs: expected texts or rows of token ids; {error}.") from None
    if rows[0].ndim == 0:  # the ids of a single sample
        rows = [torch.stack(rows)]
    if len({row.shape for row in rows}) == 1:
        return ReadInputs(None, torch.stack(rows), token_mask)
    if token_mask is not None or any(row.ndim != 1 for row in rows):
        raise InputError("rows of different lengths are padded here; leave token_mask out.")
    padded = pad_sequence(rows, batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    return ReadInputs(None, padded, torch.arange(padded.shape[1]) < lengths.unsqueeze(1))


def as_network(
    model: Model, inputs: Inputs, token_mask: Tensor | None = None
) -> tuple[Network, Tensor, Tensor | None]:
    """A model as a network, and its inputs as the hidden states before the first block."""
    texts, tensor, mask = read_inputs(inputs, token_mask)
    if isinstance(model, Network):
        if tensor is None or not tensor.is_floating_point():
            raise InputError(
                "a Network has no embeddings and reads hidden states (batch, token, feature); "
                "`rankscope.text.embed` turns texts into random ones."
            )
        return model, tensor, mask
    if not _is_loaded(model) and not isinstance(model, nn.Module):
        raise KindError(
            f"model: got {type(model).__name__}, expected a Network, a model of transformers, or "
            "what rankscope.load returns."
        )
    from rankscope.models.families import Loaded, load  # imports Transformers

    loaded = model if isinstance(model, Loaded) else load(model)
    source = list(texts) if texts is not None else tensor
    assert source is not None
    x, real, _ = loaded.inputs(source, token_mask=mask)
    return loaded.network, x, real


def _is_loaded(model: object) -> bool:
    """Whether ``rankscope.load`` returned it; does not import Transformers."""
    families = sys.modules.get("rankscope.models.families")
    return families is not None and isinstance(model, families.Loaded)


def is_transformers_model(model: nn.Module) -> bool:
    """Whether a module is a model of Transformers; asked without importing it."""
    kinds = (kind for kind in type(model).__mro__ if kind.__module__.startswith("transformers."))
    return any(kind.__name__ == "PreTrainedModel" for kind in kinds)


def _of_any_model(
    function: Callable[Concatenate[Network, Tensor, Options], Answer],
) -> Callable[Concatenate[Model, Inputs, Options], Answer]:
    """Wrap a function of the core to accept any model and any kind of inputs."""

    @wraps(function)
    def call(
        model: Model, inputs: Inputs, *rest: Options.args, **options: Options.kwargs
    ) -> Answer:
        mask: Any = options.get("token_mask")
        network, x, options["token_mask"] = as_network(model, inputs, mask)
        return function(network, x, *rest, **options)

    shown: Any = _with_signature(call, function, Model, Inputs)
    return cast(Callable[Concatenate[Model, Inputs, Options], Answer], shown)


Call = TypeVar("Call", bound=Callable[..., Any])


def _with_signature(call: Call, function: Any, model: Any, *inputs: Any) -> Call:
    """Set the signature that ``help`` and editors show, with the parameter names used here."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    for at, (name, kind) in enumerate(zip(("model", "inputs"), (model, *inputs), strict=False)):
        parameters[at] = parameters[at].replace(name=name, annotation=kind)
    shown = signature.replace(parameters=parameters)
    call.__signature__ = shown  # type: ignore[attr-defined]
    return call


bounds = _of_any_model(_theory.bounds)
deep_trace = _of_any_model(_deep.deep_trace)
head_shares = _of_any_model(_paths.head_shares)
path_lengths = _of_any_model(_paths.path_lengths)
path_matrix = _of_any_model(_paths.path_matrix)
path_output = _of_any_model(_paths.path_output)
top_paths = _of_any_model(_paths.top_paths)
truncate = _of_any_model(_paths.truncate)


@wraps(_tracing.trace)
def trace(model: Any, inputs: Any, **options: Any) -> _tracing.Trace:
    """Texts and lists of ids are read; other inputs are passed to the model unchanged."""
    if _is_loaded(model):
        model, inputs = _arguments(model, inputs, options.pop("token_mask", None))
    elif isinstance(inputs, np.ndarray):
        inputs = torch.from_numpy(inputs)
    return _tracing.trace(model, inputs, **options)


@wraps(_tracing.attach)
def attach(model: Any, **options: Any) -> _tracing.Session:
    """As ``trace``: what the session's ``trace`` is given is read for a loaded model."""

    def read(inputs: Any, token_mask: Tensor | None) -> tuple[Any, Tensor | None]:
        if _is_loaded(model):
            return _arguments(model, inputs, token_mask)[1], None
        return torch.from_numpy(inputs) if isinstance(inputs, np.ndarray) else inputs, token_mask

    body = model.body if _is_loaded(model) else model
    return _tracing.attach(body, **options).reading(read)


attach = _with_signature(attach, _tracing.attach, Model)


def _arguments(
    loaded: "Loaded", inputs: Inputs, token_mask: Tensor | None
) -> tuple[nn.Module, dict[str, Any]]:
    """The original model, and its inputs as the arguments it takes."""
    texts, tensor, mask = read_inputs(inputs, token_mask)
    source = tensor if texts is None else list(texts)
    assert source is not None
    return loaded.body, loaded.arguments(source, token_mask=mask)


trace = _with_signature(trace, _tracing.trace, Model, Inputs)


@wraps(_tracing.activations)
def activations(model: Any, inputs: Any, names: str | Sequence[str]) -> dict[str, Tensor]:
    """As ``trace``: texts and lists of ids are read for a loaded model."""
    if _is_loaded(model):
        model, inputs = _arguments(model, inputs, None)
    elif isinstance(inputs, np.ndarray):
        inputs = torch.from_numpy(inputs)
    return _tracing.activations(model, inputs, names)


activations = _with_signature(activations, _tracing.activations, Model, Inputs)


@wraps(_prediction.predict)
def predict(model: Any, inputs: Any = None, **options: Any) -> _prediction.Prediction:
    """For a network or model, the design is used and weights are drawn anew."""
    if isinstance(model, Spec):
        if inputs is not None:
            inputs = read_inputs(inputs).tensor
        return _prediction.predict(model, inputs, **options)
    if inputs is None:
        network = model if isinstance(model, Network) else as_network(model, [[1]])[0]
        return _prediction.predict(drawable(network), **options)
    network, x, mask = as_network(model, inputs, options.pop("token_mask", None))
    return _prediction.predict(drawable(network), x, token_mask=mask, **options)


predict = _with_signature(predict, _prediction.predict, "Spec | Model", Inputs | None)
