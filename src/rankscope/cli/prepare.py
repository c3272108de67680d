"""From options to a network and its input; imported only once a command runs."""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankscope.cli.options import InputOptions, ModelOptions, NetworkOptions
from rankscope.errors import InputError
from rankscope.masks import Mask, as_mask
from rankscope.network import Network, Spec
from rankscope.network.network import ABLATIONS
from rankscope.text import embed, passages

if TYPE_CHECKING:
    from rankscope.experiments.d5 import Case
    from rankscope.experiments.study import Study
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
    about: dict[str, str]

    @property
    def batches(self) -> int:
        """How many forward passes the input takes."""
        return -(-len(self.x) // BATCH)


def subject(model: ModelOptions, network: NetworkOptions, source: InputOptions) -> Subject:
    """The random network of the options, or the model that was named."""
    checked_seed(network.seed)
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
    return Subject(net, x, token_mask, measured, _title(network), _about(x, model, source))


def masks_named(listed: Sequence[str]) -> list[Mask]:
    """Masks by their names; a wrong one is found before any work is done."""
    if not listed:
        raise InputError("--masks names none; try full,causal,window:8.")
    return [as_mask(name) for name in listed]


def checked_seed(seed: int) -> None:
    """Raise unless random numbers can start from it."""
    if not 0 <= seed < 2**63 - 2**20:  # some experiments count on from it
        raise InputError(f"--seed {seed} is out of range; use 0 to 2^62.")


def all_tokens_count(subject: Subject, command: str) -> None:
    """Refuse to leave special tokens out of figures that are about all tokens."""
    if subject.measured is not None:
        raise InputError(
            f"--no-special-tokens is not for {command}: its bounds and graphs are about all tokens."
        )


def parts_named(listed: Sequence[str]) -> Sequence[str]:
    """Parts to leave out; a wrong one is found before any work is done."""
    for name in listed:
        if name not in ABLATIONS:
            raise InputError(
                f"--without: a network has no part {name!r}; choose {', '.join(ABLATIONS)}."
            )
    return listed


def title_without(title: str, without: str) -> str:
    """A title that says which parts are left out."""
    return f"{title}; without {without.replace(',', ', ')}" if without.strip() else title


def noted(found: "Study", about: Mapping[str, str]) -> "Study":
    """A study with what it looked at in its provenance."""
    return replace(found, provenance={**found.provenance, **about})


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
        text = _bytes(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--text {path} cannot be read as UTF-8 text: {error}.") from error
    found = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text)]
    found = [part for part in found if part]
    if not found:
        raise InputError(f"--text {path} holds no text; give at least one paragraph.")
    return found


def _bytes(path: Path) -> bytes:
    if str(path) != "-":
        return path.read_bytes()
    if sys.stdin is None:
        raise InputError("--text - reads standard input, which is closed.")
    return sys.stdin.buffer.read()


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
    return Subject(net, x, token_mask, measured, title, _about(x, model, source))


def _read(loaded: "Loaded", source: InputOptions, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """The blocks' input for the texts; noise for models that see images."""
    if hasattr(loaded.body.config, "image_size"):
        if source.text is not None:
            raise InputError(f"{loaded.name} sees images, so --text has nothing to tell it.")
        _readable(source)
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
    trained: list[Case] = []
    for given in pretrained:
        label, _, source = ("", "", given) if Path(given).is_dir() else given.rpartition("=")
        name = f"{label or Path(source).name} (pretrained)"
        taken = sum(case.name.startswith(name) for case in trained)
        trained.append(Case(f"{name} {taken + 1}" if taken else name, partial(load, source)))
    return fresh + trained


def _readable(source: InputOptions) -> None:
    if source.passages < 1:
        raise InputError(f"--passages {source.passages} leaves nothing to read; use 1 or more.")
    if not 3 <= source.length < 2**31:
        raise InputError(f"--length {source.length} is out of range; use 3 or more tokens.")


def texts(source: InputOptions) -> list[str]:
    """The texts to read: the bundled ones or the user's, no more than asked for."""
    _readable(source)
    found = passages() if source.text is None else paragraphs(source.text)
    return found[: source.passages]


def _about(x: Tensor, model: ModelOptions, source: InputOptions) -> dict[str, str]:
    """What was looked at, for the provenance."""
    text = "bundled passages" if source.text is None else str(source.text)
    special = "counted" if model.special_tokens else "left out of the figures"
    return {
        "input": f"{len(x)} samples of up to {x.shape[1]} tokens, {text}",
        "special tokens": special,
        "dtype": str(x.dtype),
    }


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
