"""Is this model collapsing, where, why, and what now?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from rankscope.arguments import Seed, checked
from rankscope.ask import Cost, network_subject, title_of
from rankscope.core.checks import whole
from rankscope.core.network import Network
from rankscope.errors import InputError, UnsupportedModelError
from rankscope.experiments import diagnosis, kit, variants
from rankscope.experiments.questions import advise
from rankscope.models.calls import (
    Inputs,
    ReadInputs,
    as_network,
    is_transformers_model,
    read_inputs,
)
from rankscope.models.text import passages

if TYPE_CHECKING:
    from rankscope.models.families import Loaded

ENTRY = kit.question(
    "diagnose",
    "Is it collapsing, where, why, and what now?",
    asks=kit.Asks(unfit_text=True, any_model=True),
    metrics=(
        kit.Metric(
            "residual_step",
            "Change of the residual",
            "decades",
            "linear",
            "0 = no change; -1 = a tenth is left",
            "log10 of the relative residual after a part of a block, less that before it; the "
            "changes of all parts add up to the change over the network.",
            includes=(0.0,),
        ),
        kit.Metric(
            "residual_step_alone",
            "Change without the skip",
            "decades",
            "linear",
            "0 = no change; -1 = a tenth is left",
            "log10 of the relative residual of a part's own output, without the skip around it, "
            "less that of its input.",
            includes=(0.0,),
        ),
        kit.Metric(
            "common_residual",
            "Residual without giants",
            "less the longest tokens",
            "log",
            "0 = all tokens but a few alike",
            "The relative residual of the tokens that are no more than ten times as long as the "
            "median one.",
            "down",
        ),
        kit.Metric(
            "sink_share",
            "Weight on the first token",
            "mean over queries",
            "linear",
            "1 = all attention goes to the first token",
            "The mean attention weight of the first token, over the queries after it.",
            includes=(0.0, 1.0),
        ),
        kit.Metric(
            "layer_turn",
            "Turn of the tokens",
            "radians",
            "linear",
            "0 = the layer is the identity",
            "The angle by which a layer turns a token, in radians: the median over the tokens.",
            includes=(0.0,),
        ),
        kit.Metric(
            "last_token_distance",
            "Last token to its nearest neighbour",
            "parts of its length",
            "log",
            "0 = the last token equals another",
            "The distance from the last token to the token nearest to it, over the longer of the "
            "two.",
            "down",
        ),
        kit.Metric(
            "sublayer_size",
            "Size of a sublayer's output",
            "parts of the state",
            "log",
            "0 = it does nothing",
            "The length of what attention or an MLP puts out over that of the state it is added "
            "to, the median over the tokens; of a norm after the sum its output's root mean "
            "square.",
        ),
        kit.Metric(
            "sublayer_spread",
            "Token-specific output of a sublayer",
            "parts of the state",
            "log",
            "0 = the same for every token",
            "The part of its output that differs between tokens, over the size of the state.",
        ),
        kit.Metric(
            "logit_scale",
            "Scale of the logits",
            "standard deviation",
            "log",
            "0 = even attention",
            "The standard deviation of the logits of a query over the keys it sees, the mean over "
            "the queries.",
        ),
        kit.Metric(
            "singular_value_share",
            "Singular value",
            "part of their sum",
            "log",
            "One large and no others = rank one",
            "Each singular value of the matrix of tokens over the sum of all, the largest first.",
        ),
        kit.Metric(
            "token_distance",
            "Distance from the center",
            "|x - mean| / rms length",
            "linear",
            "0 = all tokens alike",
            "The distance of a token from the mean of all, over the root mean square of all "
            "tokens' lengths.",
            "down",
            includes=(0.0,),
        ),
        kit.Metric(
            "token_cosine",
            "Cosine between two tokens",
            "cos",
            "linear",
            "1 = they point the same way",
            "The cosine of the angle between two tokens of one sample.",
            "up",
            includes=(-1.0, 1.0),
        ),
    ),
)


_TRACING: Final = ("blocks", "layout", "stream", "output")
"""Options of ``trace`` for a model that is not converted."""


@dataclass(frozen=True)
class Config(kit.Question):
    """``parts``: what SAN and others lack; ``reference_seed`` draws networks to compare with.

    ``fix`` is a folder for the repaired checkpoint, if there is to be one; ``chapters`` are those
    that take time of their own.
    """

    parts: variants.Parts = "steps"
    reference_seed: Seed = 0
    fix: str = ""
    chapters: tuple[diagnosis.Asked, ...] = diagnosis.DEFAULT

    def describe(self) -> dict[str, Any]:
        """What is taken away, in words."""
        return {
            "ablations": f"{self.parts}: {variants.PARTS[self.parts]}",
            "seed of the references": self.reference_seed,
            "further chapters": ", ".join(sorted({*self.chapters})) or "none",
        }


def cost(config: Config) -> Cost:
    """What it will take at least: slower chapters are left out where they would take long."""
    metrics = ("relative_residual", "effective_rank", "attention_entropy", "dobrushin")
    return Cost.of_trace(config.subject, metrics).times(3)


def run_in_turn(config: Config, on_step: kit.OnStep) -> Iterator[kit.Result]:
    """Measure the model once, stage by stage, judge it by rules, and explain: the answer first."""
    parts, seed = config.parts, config.reference_seed
    fix = Path(config.fix).expanduser() if config.fix else None
    for fields in diagnosis.diagnose_subject(
        config.subject, parts, seed, on_step, fix, config.chapters
    ):
        # Its advice is a chapter, and brings its metrics.
        yield ENTRY.result(
            config, metrics=advise.ENTRY.metrics, shown=("relative_residual",), **fields
        )
    on_step(1.0)


@checked
def diagnose(
    model: "str | Path | nn.Module | Loaded | Network",
    inputs: "Inputs | None" = None,
    *,
    token_mask: Tensor | None = None,
    measured: Tensor | None = None,
    parts: variants.Parts = "steps",
    length: int | None = None,
    batch_size: int = 8,
    seed: Seed = 0,
    fix: str | Path | None = None,
    chapters: diagnosis.Asked | Sequence[diagnosis.Asked] = diagnosis.DEFAULT,
    on_step: kit.OnStep | None = None,
    **loading: Any,
) -> kit.Result:
    """Is a model collapsing, where, why, and what could be done about it?

    >>> from rankscope import Network, Spec
    >>> found = diagnose(Network.random(Spec(2, 2, 16, init="lecun")), ["A rose is a rose."])
    >>> found.headline.text
    'No collapse'
    >>> [finding.kind for finding in found.findings]
    ['depth collapse', 'width collapse', 'entropy collapse', 'layer collapse', ...]

    ``model`` is whatever ``rankscope.load`` takes or returns (a folder, a Hub id, a transformers
    model); ``loading`` are options of ``load``. One that cannot be converted is traced as it is,
    and so is any other ``nn.Module`` with a stack of blocks: chapters that need our network then
    say why they are left out. ``inputs`` are texts or token ids, the bundled passages by default; a
    ``Network`` also takes hidden states, and reads texts in random embeddings; a module takes what
    ``trace`` does (a tensor, keyword arguments in a mapping, positional ones in a sequence), and
    ``blocks``, ``layout``, ``stream`` and ``output`` are those of ``trace``. ``measured`` leaves
    tokens out of the figures that the network still sees (CLS and the like); ``parts`` says what
    SAN and the others lack (see ``four_variants``); ``seed`` draws the networks to compare with;
    ``on_step`` is called with the share of the work that is done. ``fix`` is a folder, new or
    empty, into which the model is written with the repairs that help; its own files are not
    touched. ``chapters`` are those that take time of their own: ``"paths"``, ``"core"``,
    ``"bounds"``, ``"design"`` (the default), or ``"all"``.
    """
    tracing: dict[str, Any] = {name: loading.pop(name) for name in _TRACING if name in loading}
    options: dict[str, Any]
    if isinstance(model, nn.Module) and not isinstance(model, Network):
        subject = _module_subject(
            model, inputs, token_mask, measured, tracing, length=length, seed=seed, **loading
        )
    else:
        reading = _reading(inputs, token_mask)
        if isinstance(model, Network):
            options = {**loading, **tracing}
            subject = _network_subject(model, reading, token_mask, measured, length, seed, options)
        else:
            _refuse_masks(reading, token_mask, measured)
            from rankscope.ask import model_subject  # imports Transformers

            options = {"length": length, "seed": seed, "any_model": True, "tracing": tracing}
            subject = model_subject(model, reading.texts, ids=reading.ids, **options, **loading)
    subject = replace(subject, batch_size=whole("batch_size", batch_size, least=1))
    folder = "" if fix is None else str(fix)
    asked = (chapters,) if isinstance(chapters, str) else tuple(chapters)
    *_, result = run_in_turn(Config(subject, parts, seed, folder, asked), on_step or kit.silent)
    return result


def _reading(inputs: Inputs | None, token_mask: Tensor | None) -> ReadInputs:
    return ReadInputs(None, None, None) if inputs is None else read_inputs(inputs, token_mask)


def _refuse_masks(reading: ReadInputs, token_mask: Tensor | None, measured: Tensor | None) -> None:
    if measured is not None or (reading.tensor is not None and reading.ids is None):
        raise InputError(
            "hidden states and measured are for a Network; a model reads texts or ids."
        )
    if token_mask is not None and reading.tensor is None:
        raise InputError("token_mask is about token ids or hidden states; give them, too.")


def _network_subject(
    model: Network,
    reading: ReadInputs,
    token_mask: Tensor | None,
    measured: Tensor | None,
    length: int | None,
    seed: int,
    loading: Mapping[str, Any],
) -> kit.Subject:
    if loading:
        raise InputError(f"{next(iter(loading))} applies to loading a model; this is a network.")
    if reading.tensor is not None:
        network, x, mask = as_network(model, reading.tensor, reading.token_mask)
        return kit.Subject(network, x, mask, measured, title_of(model))
    if token_mask is not None or measured is not None:
        raise InputError("token_mask and measured are about hidden states; give them, too.")
    read = passages() if reading.texts is None else reading.texts
    return network_subject(model, read, length=128 if length is None else length, seed=seed)


def _module_subject(
    model: nn.Module,
    inputs: Inputs | None,
    token_mask: Tensor | None,
    measured: Tensor | None,
    tracing: Mapping[str, Any],
    *,
    length: int | None,
    seed: int,
    **loading: Any,
) -> kit.Subject:
    """A model of transformers on what ``load`` reads for it, or any module on its own arguments."""
    from rankscope.ask import model_subject, module_subject  # imports Transformers

    reads = is_transformers_model(model)
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind not in "UO":
        inputs = torch.from_numpy(inputs)
    own = isinstance(inputs, Mapping) and not inputs.keys() <= {"input_ids", "attention_mask"}
    if reads and not own:
        options: dict[str, Any] = {"length": length, "seed": seed, "any_model": True}
        options |= {"tracing": tracing, **loading}
        takes_images = getattr(model, "main_input_name", "input_ids") != "input_ids"
        if takes_images and isinstance(inputs, Tensor) and inputs.is_floating_point():
            return model_subject(model, images=inputs, **options)
        reading = _reading(inputs, token_mask)
        _refuse_masks(reading, token_mask, measured)
        return model_subject(model, reading.texts, ids=reading.ids, **options)
    given = [name for name, value in {"length": length, **loading}.items() if value is not None]
    if given:
        raise InputError(
            f"{given[0]} is not an option for a module, which runs on its inputs as they are."
        )
    if inputs is None or isinstance(inputs, str) or _is_texts(inputs):
        raise InputError(
            f"{type(model).__name__} has no tokeniser; give what its forward pass takes: a tensor, "
            "keyword arguments in a mapping, or positional ones in a list."
        )
    reason = None
    if reads:
        reason = UnsupportedModelError(
            "the model runs as it is on keyword arguments; give texts or token ids alone to have "
            "it converted."
        )
    return module_subject(
        model, inputs, token_mask=token_mask, measured=measured, tracing=tracing, reason=reason
    )


def _is_texts(inputs: Any) -> bool:
    return isinstance(inputs, Sequence) and all(isinstance(text, str) for text in inputs)
