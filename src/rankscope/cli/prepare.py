"""From options to a network and its input; imported only once a command runs."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankscope.cli.options import InputOptions, ModelOptions, NetworkOptions
from rankscope.errors import InputError
from rankscope.network import Network, Spec
from rankscope.text import embed, passages

if TYPE_CHECKING:
    from rankscope.experiments.d5 import Case
    from rankscope.families import Loaded

_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_BERT_EPS = 1e-12
BATCH = 8
"""Samples per forward pass: enough to keep two cores busy, little enough for a laptop."""


@dataclass(frozen=True)
class Subject:
    """What a command looks at: a network, its input, and what to call it."""

    network: Network
    x: Tensor
    token_mask: Tensor
    measured: Tensor | None
    title: str

    @property
    def batches(self) -> int:
        """How many forward passes the input takes."""
        return -(-len(self.x) // BATCH)


def subject(model: ModelOptions, network: NetworkOptions, source: InputOptions) -> Subject:
    """The random network of the options, or the model that was named."""
    if model.model is not None:
        return _real(model.model, model, network, source)
    if model.at_init or model.pickled:
        raise InputError("--at-init and --pickled are about a MODEL, and none was named.")
    net = network_from(network)
    x, token_mask = embed(
        texts(source),
        network.width,
        length=source.length,
        seed=network.seed,
        dtype=_DTYPES[network.precision],
    )
    measured = None if model.special_tokens else _between(token_mask)
    return Subject(net, x, token_mask, measured, _title(network))


def network_from(options: NetworkOptions) -> Network:
    """The random network the options describe."""
    spec = Spec(
        options.layers,
        options.heads,
        options.width,
        mlp_ratio=options.mlp_ratio,
        norm=options.norm,
        norm_place=options.norm_place,
        norm_eps=_BERT_EPS,
        mask=options.mask or "full",
        init=_number(options.init),
    )
    return Network.random(spec, seed=options.seed, dtype=_DTYPES[options.precision])


def paragraphs(path: Path) -> list[str]:
    """The paragraphs of a text file, told apart by blank lines; '-' is standard input."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--text {path} cannot be read as UTF-8 text: {error}.") from error
    found = [" ".join(part.split()) for part in text.replace("\r\n", "\n").split("\n\n")]
    found = [part for part in found if part]
    if not found:
        raise InputError(f"--text {path} holds no text; give at least one paragraph.")
    return found


def _real(name: str, model: ModelOptions, network: NetworkOptions, source: InputOptions) -> Subject:
    from rankscope.families import load

    _only_for_random_networks(network)
    dtype = _DTYPES[network.precision]
    loaded = load(name, init=model.at_init, seed=network.seed, dtype=dtype, pickled=model.pickled)
    x, token_mask, special = _read(loaded, source, network.seed)
    net = loaded.network if network.mask is None else loaded.network.with_mask(network.mask)
    measured = None if model.special_tokens else token_mask & ~special
    state = "at initialisation" if model.at_init else "pretrained"
    title = (
        f"{name}, {state}: {loaded.family.name}, {net.spec.layers} layers, {net.spec.heads} heads"
    )
    return Subject(net, x, token_mask, measured, title)


def _read(loaded: "Loaded", source: InputOptions, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """The blocks' input for the texts, batch by batch; noise for models that see images."""
    if hasattr(loaded.body.config, "image_size"):
        if source.text is not None:
            raise InputError(f"{loaded.name} sees images, so --text has nothing to tell it.")
        return loaded.inputs(loaded.noise_images(source.passages, seed=seed))
    return loaded.inputs(texts(source), length=source.length)


def cases(names: Sequence[str], pretrained: Sequence[str], *, seed: int) -> list["Case"]:
    """Models for a claim: built-in ones at initialisation, and real ones with their weights."""
    from rankscope.experiments.d5 import Case
    from rankscope.families import BUILTIN, load

    unknown = [name for name in names if name not in BUILTIN]
    if unknown:
        raise InputError(f"--models {unknown[0]} is not built in; choose {', '.join(BUILTIN)}.")
    if not names and not pretrained:
        raise InputError("there is no model to try; name some with --models or --pretrained.")
    fresh = [Case(f"{name} (init)", partial(load, name, init=True, seed=seed)) for name in names]
    labelled = (given.rpartition("=") for given in pretrained)
    trained = [
        Case(f"{label or Path(source).name} (pretrained)", partial(load, source))
        for label, _, source in labelled
    ]
    return fresh + trained


def texts(source: InputOptions) -> list[str]:
    """The texts to read: the bundled ones or the user's, no more than asked for."""
    if source.passages < 1:
        raise InputError(f"--passages {source.passages} leaves nothing to read; use 1 or more.")
    found = passages() if source.text is None else paragraphs(source.text)
    return found[: source.passages]


def _between(token_mask: Tensor) -> Tensor:
    """The tokens between CLS and SEP, which stand first and last in bundled tokenisation."""
    position = token_mask.cumsum(-1)
    inner = token_mask & (position > 1) & (position < token_mask.sum(-1, keepdim=True))
    if not bool(inner.any(-1).all()):
        raise InputError("some sample has no token besides CLS and SEP; keep special tokens.")
    return inner


def _only_for_random_networks(given: NetworkOptions) -> None:
    """Options that describe a random network say nothing about a model; do not ignore them."""
    plain = replace(NetworkOptions(), mask=given.mask, seed=given.seed, precision=given.precision)
    for name in ("layers", "heads", "width", "mlp_ratio", "norm", "norm_place", "init"):
        if getattr(given, name) != getattr(plain, name):
            option = name.replace("_", "-")
            raise InputError(f"--{option} describes a random network, but a MODEL was named.")


def _title(options: NetworkOptions) -> str:
    return (
        f"A random network: {options.layers} layers, {options.heads} heads, width {options.width}, "
        f"{options.norm_place}-{options.norm} norm, {options.mask or 'full'} mask, "
        f"init {options.init}"
    )


def _number(init: str) -> str | float:
    """An initialisation's name, or the standard deviation it spells."""
    try:
        return float(init)
    except ValueError:
        return init
