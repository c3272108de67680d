"""A loaded model: the original, our network on its weights, and the way from text to blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rankscope.arguments import checked
from rankscope.core.checks import valid_mask, whole
from rankscope.core.network import Network
from rankscope.core.pooling import Pooling
from rankscope.core.tracing import captured_input, evaluating, refuse_broken, with_replaced_state
from rankscope.errors import InputError, KindError, RankscopeError, ShapeError, SourceError
from rankscope.models.families._architectures import family_of
from rankscope.models.families._family import Family, Original, config_of
from rankscope.models.families._pooling import leading_tokens, pooling_of
from rankscope.models.families._sources import quiet
from rankscope.models.families._tokenization import encode, input_check, special_tokens
from rankscope.models.families._verification import (
    Probe,
    Verification,
    compare,
    media_shape,
    probes,
    sees_images,
    text_arguments,
)
from rankscope.models.text import InputCheck
from rankscope.numerals import cut, short
from rankscope.process import atomic_folder, require
from rankscope.streams import global_stream, stream

Readable = Sequence[str] | Tensor | Sequence[Any]
"""Texts; token ids, embeddings or images in a tensor; or images for the model's processor."""


class BlockInput(NamedTuple):
    """What the blocks are given: states, which tokens are real, which are special (CLS, BOS, …).

    >>> from rankscope import load
    >>> x, token_mask, special_mask = load("bert-base", at_init=True).inputs(["It rains."])
    >>> special_mask[0].tolist()
    [True, False, False, False, False, False, False, False, True]
    """

    x: Tensor
    token_mask: Tensor
    special_mask: Tensor


class ModelInput(NamedTuple):
    """What a model is given.

    ``token_mask`` is None for images and sounds, whose tokens are known once they have run;
    ``lost`` is of texts how many tokens of each were cut off.
    """

    arguments: dict[str, Any]
    token_mask: Tensor | None
    lost: tuple[int, ...] | None


@checked
class Reader:
    """A model, and how its inputs become the arguments of its forward pass."""

    original: nn.Module
    family: Family
    name: str
    tokenizer: Any
    processor: Any

    @property
    def body(self) -> Original:
        """The part of the original that our network stands for, with its embeddings."""
        return self.family.body_of(self.original)

    @property
    def sees_images(self) -> bool:
        """Whether its input is images, not text."""
        return sees_images(self.body)

    @property
    def media(self) -> str:
        """The argument that takes images or sounds; empty for a model that reads text."""
        name = str(getattr(self.body, "main_input_name", "input_ids"))
        return "" if name == "input_ids" else name

    def arguments(
        self, source: Readable, *, token_mask: Tensor | None = None, length: int | None = None
    ) -> dict[str, Any]:
        """Keyword arguments with which the original's body runs on the same input."""
        arguments, real, lost = self._arguments(source, token_mask, length)
        if lost is not None and real is not None:
            self._refuse_unfit(input_check(arguments, real, self.tokenizer, lost))
        return arguments

    def _arguments(
        self, source: Readable, token_mask: Tensor | None, length: int | None
    ) -> ModelInput:
        """The arguments, which tokens are real, and of texts how many of each were cut off."""
        if not isinstance(source, Tensor):
            if not source:
                raise InputError("there is nothing to read; give at least one text or image.")
            if isinstance(source, str):
                raise KindError("give texts in a list: loaded.inputs(['...']).")
            if all(isinstance(one, str) for one in source):
                if token_mask is not None:
                    raise InputError("texts are padded and masked here: give no token_mask.")
                if length is not None:
                    whole("length", length, least=1)
                if self.media:
                    what = "sees images" if self.sees_images else f"takes {self.media}"
                    raise KindError(f"{self.name} {what} and reads no text.")
                if self.tokenizer is None:
                    raise SourceError(
                        f"{self.name} came without a tokeniser, or with one that knows no word, "
                        "so it cannot read text; name another (--tokenizer, or tokenizer= in "
                        "Python), or give token ids (--ids, or a tensor of them)."
                    )
                ids, real, lost = encode(self.tokenizer, source, length)
                return self._of_tensor(ids, real)._replace(lost=lost)
            if self.processor is None:
                raise KindError(
                    "expected texts, a tensor of token ids, embeddings or images; images that are "
                    "not tensors need an image processor, and this model came without one."
                )
            source = self.processor(images=list(source), return_tensors="pt")["pixel_values"]
        if length is not None:
            raise InputError(
                f"length={length} cuts texts, which are tokenised here; token ids and embeddings "
                "are cut by whoever gives them: ids[:, :length]. Images have one length."
            )
        assert isinstance(source, Tensor)
        return self._of_tensor(source, token_mask)

    def _of_tensor(self, source: Tensor, token_mask: Tensor | None) -> ModelInput:
        tensor = source.to(next(self.body.parameters()).device)
        self._check(tensor)
        if self.media:
            return ModelInput({self.media: tensor}, None, None)
        if token_mask is None:
            token_mask = torch.ones(tensor.shape[:2], dtype=torch.bool)
        token_mask = valid_mask(token_mask, tuple(tensor.shape[:2])).to(tensor.device)
        if not token_mask.all() and not self._may_pad:
            raise InputError(
                f"{self.name} takes no attention_mask, so it cannot leave padding out; give "
                "sequences of one length."
            )
        arguments = text_arguments(self.family, self.body, tensor, token_mask)
        return ModelInput(arguments, token_mask, None)

    @property
    def _may_pad(self) -> bool:
        """Whether samples of different lengths can be read."""
        return self.family.takes(self.body, "attention_mask")

    def _check(self, tensor: Tensor) -> None:
        """Images for a model that sees; else ids of the vocabulary or embeddings, not too long."""
        got = f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
        if self.sees_images:
            if tensor.ndim == 4 and tensor.is_floating_point():
                return
            raise ShapeError(f"{self.name} sees images (batch, channel, height, width), {got}.")
        if self.media:
            if tensor.is_floating_point():
                return
            raise ShapeError(f"{self.name} takes {self.media}, which are real numbers; {got}.")
        if tensor.is_floating_point() != (tensor.ndim == 3) or tensor.ndim not in (2, 3):
            raise ShapeError(
                f"{got}; expected token ids (batch, token) or embeddings (batch, token, feature)."
            )
        most = self.family.most_tokens(self.body)
        if most is not None and tensor.shape[1] > most:
            raise InputError(
                f"{tensor.shape[1]} tokens are more than the {most} positions {self.name} has; "
                "cut them: loaded.inputs(texts, length=...), --length."
            )
        vocabulary = getattr(config_of(self.body), "vocab_size", None)
        try:
            table = self.body.get_input_embeddings().weight
        except (AttributeError, NotImplementedError):  # its own forward pass has to tell
            table = None
        if table is None and tensor.ndim == 3:
            raise ShapeError(f"{self.name} has no table of word embeddings to replace; {got}.")
        if table is None:
            return
        fits = tensor.shape[-1] == table.shape[1] and tensor.dtype == table.dtype
        if tensor.ndim == 3 and not fits:
            raise ShapeError(
                f"embeddings are {tensor.dtype} of width {tensor.shape[-1]}, expected "
                f"{table.dtype} of width {table.shape[1]}."
            )
        if tensor.ndim == 2:
            low, high = int(tensor.min()), int(tensor.max())
            size = len(table) if vocabulary is None else vocabulary
            if not 0 <= low <= high < size:
                raise InputError(
                    f"token ids run from {low} to {high}, but the vocabulary of {self.name} has "
                    f"{size}; use the model's own tokeniser."
                )

    def _refuse_unfit(self, check: InputCheck) -> None:
        if check.origin == "text" and not check.fits:
            raise InputError(
                f"{check.unknown_count} of {check.counted} tokens are unknown to the tokeniser of "
                f"{self.name}: this text is not what the model reads, and figures on it would mean "
                "nothing; give text that is (--text), or token ids (--ids)."
            )

    def noise_images(self, count: int, *, seed: int = 0) -> Tensor:
        """Images (or sounds) of noise in the size the model takes, where there are no others."""
        whole("count", count, least=1, most=1_000_000)
        if not self.media:
            raise InputError(f"{self.name} reads text; give it texts or token ids.")
        noise = torch.randn(count, *media_shape(self.body), generator=stream(seed, "noise images"))
        return noise.to(next(self.body.parameters()))

    def save(self, folder: Path) -> None:
        """Write the original's weights as they are now, and its tokeniser, for ``load`` to read.

        A head that the checkpoint has and ``load`` left out, such as a classifier, is written, too.
        """
        with quiet(), atomic_folder(folder) as unfinished:
            parts: tuple[Any, ...] = (_with_head(self.original), self.tokenizer, self.processor)
            for part in parts:
                if hasattr(part, "save_pretrained"):
                    part.save_pretrained(unfinished)


@checked
@dataclass(frozen=True, repr=False)
class Loaded(Reader):
    """A model in two forms that were proven equal when it was loaded.

    >>> import transformers
    >>> small = transformers.BertConfig(
    ...     vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2
    ... )
    >>> from rankscope import load
    >>> load(transformers.BertModel(small)).network.spec.layers
    2
    """

    network: Network
    original: nn.Module
    family: Family
    verification: Verification
    name: str
    tokenizer: Any = None
    processor: Any = None
    tried_on: tuple[Probe, ...] = ()

    def __repr__(self) -> str:
        return f"Loaded {cut(self.name)} ({self._about}): {cut(self.network.spec.describe(), 300)}"

    def _repr_html_(self) -> str:
        from rankscope.show.display import card, paragraph

        network = cut(self.network.spec.describe(), 2000)
        return card(f"Loaded {cut(self.name)}", paragraph(self._about), paragraph(network))

    @property
    def _about(self) -> str:
        reads = "images" if self.sees_images else self.media or "token ids"
        if self.tokenizer is not None:
            reads = "text"
        error = short(self.verification.worst, digits=2)
        return f"{self.family.name}, reads {reads}; equal to the original to {error}"

    @cached_property
    def pooling(self) -> Pooling:
        """How the model makes one vector of a text or an image: its own way, or the usual one."""
        probe = (self.tried_on or probes(self.family, self.body))[0]
        causal, seed = self.network.is_causal(), self.network.seed
        return pooling_of(self.original, self.family, probe, causal=causal, drawn=seed)

    def embed(
        self, source: Readable, *, token_mask: Tensor | None = None, length: int | None = None
    ) -> Tensor:
        """One vector for each text or image, by the model's own pooling: (batch, feature)."""
        read = self.inputs(source, token_mask=token_mask, length=length)
        with torch.no_grad():
            return self.pooling(self.network(read.x, read.token_mask), read.token_mask)

    def inputs(
        self, source: Readable, *, token_mask: Tensor | None = None, length: int | None = None
    ) -> BlockInput:
        """Texts, token ids, images or embeddings → the blocks' input.

        Texts are tokenised (cut to ``length`` tokens, special ones among them) and padded; integers
        are token ids ``(batch, token)``; reals of three axes are embeddings in place of the
        original's word embeddings, of four axes images. The rest of the embedding is the
        original's own.
        """
        read, check = self.read(source, token_mask=token_mask, length=length)
        self._refuse_unfit(check)
        return read

    def read(
        self, source: Readable, *, token_mask: Tensor | None = None, length: int | None = None
    ) -> tuple[BlockInput, InputCheck]:
        """The same with what was read, token by token; text that does not fit is not refused."""
        arguments, _, lost = self._arguments(source, token_mask, length)
        body, ids = self.body, arguments.get("input_ids")
        with evaluating(body):
            captured = captured_input(self.family.layers_of(body), lambda: body(**arguments))
        x = self.family.batch_first(captured)
        mask = arguments.get("attention_mask")
        real = torch.ones(x.shape[:2], dtype=torch.long) if mask is None else mask
        real = real.bool().to(x.device)
        special = torch.zeros_like(real)
        if "pixel_values" in arguments:
            special[:, : leading_tokens(body)] = True  # class and register tokens, if any
        elif ids is not None and self.tokenizer is not None:
            special = special_tokens(self.tokenizer, ids) & real
        check = input_check(arguments, real, self.tokenizer, lost)
        return BlockInput(x, real, special), check

    def verify(self) -> Verification:
        """Compare every layer with the original's again; raise if one differs too much."""
        tried_on = self.tried_on or probes(self.family, self.body)
        verification = compare(self.family, self.body, self.network, tried_on)
        verification.check()
        return verification

    def finish(self, hidden: Tensor, arguments: dict[str, Any]) -> Any:
        """What the original makes of other hidden states: its final norm, pooling and head.

        ``hidden`` takes the place of the last block's output while the original runs on
        ``arguments`` (``loaded.arguments(texts)``); the answer is the original's own output.
        """
        state = self.family.batch_first(hidden)  # its own inverse where the axes differ
        layers = self.family.layers_of(self.body)
        with evaluating(self.original):
            return with_replaced_state(layers, state, lambda: self.original(**arguments))

    def reinitialised(self, *, seed: int = 0) -> "Loaded":
        """The same architecture with fresh random weights, drawn as the original draws them."""
        return build(
            fresh(self.original, seed),
            name=f"{self.name} at initialisation",
            seed=seed,
            tokenizer=self.tokenizer,
            processor=self.processor,
            family=self.family,
            tried_on=self.tried_on,
        )


@checked
@dataclass(frozen=True, repr=False)
class Unconverted(Reader):
    """A model that is not converted, with the reason: it runs as it is, and can be traced."""

    original: nn.Module
    family: Family
    name: str
    reason: RankscopeError
    tokenizer: Any = None
    processor: Any = None

    def __repr__(self) -> str:
        return f"Unconverted {cut(self.name)}: {cut(str(self.reason), 300)}"

    def read(
        self, source: Readable, *, token_mask: Tensor | None = None, length: int | None = None
    ) -> ModelInput:
        """Texts, token ids, images or sounds → the arguments of the body."""
        return self._arguments(source, token_mask, length)

    @property
    def _may_pad(self) -> bool:
        return True  # what cannot be padded runs sample by sample

    def describe(self, read: ModelInput, token_mask: Tensor) -> tuple[Tensor, InputCheck]:
        """Which tokens are special, and what was read, once it is known how many tokens ran."""
        special, ids = torch.zeros_like(token_mask), read.arguments.get("input_ids")
        if ids is not None and ids.shape != token_mask.shape:  # the model adds tokens of its own
            return special, input_check({}, token_mask, self.tokenizer, None)
        if ids is not None and self.tokenizer is not None:
            special = special_tokens(self.tokenizer, ids) & token_mask
        return special, input_check(read.arguments, token_mask, self.tokenizer, read.lost)

    def reinitialised(self, *, seed: int = 0) -> "Unconverted":
        """The same architecture with fresh random weights, drawn as the original draws them."""
        return replace(self, original=fresh(self.original, seed))


def _with_head(original: Any) -> Any:
    """The model of the checkpoint that a body was read from, on the body's weights."""
    config = getattr(original, "config", None)
    place = getattr(config, "name_or_path", "")
    named = next(iter(getattr(config, "architectures", None) or ()), "")
    if not named or named == type(original).__name__ or not Path(place).is_dir():
        return original
    kind = getattr(require("transformers"), named, None)
    if kind is None:
        return original
    whole = kind.from_pretrained(place, local_files_only=True, dtype=original.dtype)
    own = original.state_dict()
    body = whole if own.keys() <= whole.state_dict().keys() else whole.base_model
    missing = own.keys() - body.state_dict().keys()
    body.load_state_dict(own, strict=False)
    return original if any("pool" not in name for name in missing) else whole


def fresh(original: nn.Module, seed: int) -> nn.Module:
    """Another instance of the same class and configuration, on the same devices.

    It is drawn on the GPU of the model, if there is one and it has enough free memory. No global
    random state is touched.
    """
    if not hasattr(original, "config"):
        raise InputError("only a transformers model knows how to be initialised again.")
    spread = getattr(original, "hf_device_map", None) or {}
    like = next(original.parameters())
    on_gpu = len(spread) < 2 and like.is_cuda and _fits_in_free_memory(original, like.device)
    here = like.device if on_gpu else torch.device("cpu")
    with global_stream(seed, "original"), here:
        drawn: nn.Module = type(original)(original.config)
    if len(spread) > 1:  # what is on disk there comes from main memory here
        places = {name: "cpu" if place == "disk" else place for name, place in spread.items()}
        drawn = require("accelerate").dispatch_model(drawn.to(like.dtype), places)
        return drawn.eval()
    return drawn.to("cpu" if like.is_meta else like.device, like.dtype).eval()


def _fits_in_free_memory(original: nn.Module, device: torch.device) -> bool:
    """Whether a GPU has memory for the model in float32, in which it is drawn, and its copy."""
    numbers = sum(parameter.numel() for parameter in original.parameters())
    return torch.cuda.mem_get_info(device)[0] > 8 * numbers


def build(
    model: nn.Module,
    *,
    name: str,
    tokenizer: Any = None,
    processor: Any = None,
    seed: int | None = None,
    family: Family | None = None,
    tried_on: Sequence[Probe] = (),
) -> Loaded:
    """Find the family, build the network on the first probe, and verify it on the last.

    ``tried_on`` are the probes, by default random input.
    """
    family = family_of(model) if family is None else family
    body = family.body_of(model)
    broken = refuse_broken(body, family.layers_of(body))
    if broken:  # nothing could be compared
        raise InputError(
            f"the weights {broken['not finite']} are not finite, so the model computes nothing; "
            "load them again, or look where training broke down."
        )
    tried_on = tuple(tried_on) or tuple(probes(family, body))
    network = family.network(body, *tried_on[0])
    network.name, network.seed = name, seed
    verification = compare(family, body, network, tried_on[-1:])
    verification.check()
    return Loaded(network, model, family, verification, name, tokenizer, processor, tried_on)
