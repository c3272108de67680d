"""The setup of a question: one record whose fields have a help text, a default and a check.

The options of the command line and the tables of a grid are read into it; contradictions raise an
error in the notation of their source. Nothing heavy is imported before a setup is created, so that
``--help`` is fast.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, get_args

from rankscope.arguments import Range
from rankscope.ask import _words as words
from rankscope.ask._words import Asks, Dtype, NetworkOptions, Word
from rankscope.core.names import ABLATIONS
from rankscope.errors import InputError

if TYPE_CHECKING:
    from rankscope.ask._sources import Sources, TextSamples
    from rankscope.ask._subject import Subject
    from rankscope.core.masks import Mask
    from rankscope.core.network import Spec
    from rankscope.models.families import Loaded, Unconverted


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A network or a model, its input, and how it is run.

    >>> setup = Setup.of({"layers": 2, "heads": 2, "width": 8, "samples": 1, "length": 6})
    >>> setup.outline().x.shape, setup.subject().name
    (torch.Size([1, 6, 8]), 'A random network: 2 layers, 2 heads, width 8')

    ``network`` has the given fields of a ``Spec``, ``given`` the names of all given fields.
    """

    model: Annotated[
        str | None,
        Word(
            "Arguments",
            "A folder (of a training run: RUN is the latest checkpoint, RUN@500 that of step "
            "500), a .gguf file, a Hub id, or with --at-init a built-in name such as bert-base "
            "('rankscope list models' names them); without it, a random network of the shape "
            "below.",
        ),
    ] = None
    at_init: Annotated[bool, Word("Model", "Random weights instead of pretrained ones.")] = False
    special_tokens: Annotated[bool, Word("Model", "Count CLS, BOS, SEP in the figures.")] = True
    pickled: Annotated[bool, Word("Model", "Also read pickle files (weights only).")] = False
    tokenizer: Annotated[
        str | None, Word("Model", "A folder or Hub id with another tokeniser.")
    ] = None
    tower: Annotated[
        str | None,
        Word("Model", "Submodule with the blocks to look at, such as vision_model."),
    ] = None
    ids: Annotated[
        str | None,
        Word("Model", "Token ids instead of text: a line of numbers per sample.", Path | None),
    ] = None
    dtype: Annotated[
        Dtype,
        Word("Network", "Number format of the model; metrics are computed in float32 or higher."),
    ] = "float32"
    device: Annotated[
        str | None,
        Word("Network", "cpu, cuda, cuda:1, mps, or auto (a GPU if there is one); default: cpu."),
    ] = None
    without: Annotated[
        tuple[str, ...],
        Word("Network", f"Parts to leave out: {', '.join(ABLATIONS)}; '' for none.", str),
    ] = ()
    variant: str | None = None
    """SAN, SAN+MLP, SAN+skip or transformer: an alternative to ``without``."""
    seed: Annotated[
        int,
        Range(0, 2**63 - 2**20 - 1),  # some experiments use the following seeds, too
        Word("Network", "Seed of weights, embeddings and random masks."),
    ] = 0
    text: Annotated[
        str | Mapping[str, Any] | None,
        Word(
            "Input", "Your own text, a paragraph per sample; '-' for standard input.", Path | None
        ),
    ] = None
    samples: Annotated[int, Range(1), Word("Input", "Maximum number of samples.")] = words.PASSAGES
    length: Annotated[int, Range(3, 2**31 - 1), Word("Input", "Maximum tokens per sample.")] = (
        words.LENGTH
    )
    network: Mapping[str, Any] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    sources: "Sources" = field(repr=False)

    @classmethod
    def of(
        cls,
        said: Mapping[str, Any],
        asks: Asks | None = None,
        sources: "Sources | None" = None,
        *,
        several_models: bool = False,
    ) -> Self:
        """A setup from the given fields; the others have the defaults of the question.

        ``several_models`` means that models are named elsewhere.
        """
        from rankscope.ask._asked import SPEC_FIELDS, read_setup
        from rankscope.ask._sources import Sources

        asks, sources = asks or Asks(), sources or Sources()
        usual = {"samples": asks.samples, "length": asks.length, "without": asks.without}
        read = {
            name: read_setup(name, value, sources.dialect)
            for name, value in {**usual, **said}.items()
        }
        network = {name: read.pop(name) for name in SPEC_FIELDS if name in read}
        setup = cls(**read, network=network, given=frozenset(said), sources=sources)
        for contradiction in setup._contradictions(several_models):
            raise InputError(contradiction)
        return setup

    def _contradictions(self, several_models: bool) -> Iterator[str]:
        dialect = self.sources.dialect
        name, model = dialect.name, dialect.name("model")
        if self.model is None and not several_models:
            for option in ("at_init", "pickled", "tokenizer", "tower", "ids"):
                if getattr(self, option):
                    yield f"{name(option)} needs a {model}, and none was named."
        elif self.model is not None:
            built_in = self.sources.is_built_in(self.location)
            for option in self.network:
                if option != "mask":
                    yield f"{name(option)} describes a random network, but a {model} was named."
            if built_in and not self.at_init:
                add = dialect.write("at_init", True)
                yield f"{self.model} is built in and has no weights of its own; add {add}."
        if self.at_init and self.pickled:
            new = name("at_init")
            yield f"{name('pickled')} applies to pretrained weights, and {new} draws new ones."
        if self.ids is not None and self.text is not None:
            yield f"{name('ids')} and {name('text')} are two inputs; give one of them."
        if self.ids is not None and self.tokenizer is not None and self.special_tokens:
            yield f"{name('tokenizer')} has no effect: {name('ids')} are tokens already."
        if {"variant", "without"} <= self.given:
            yield "variant and without both select what is left out; give one of them."
        if dialect.strict or not self.given & {"variant", "without"}:
            described = {option for part in self.parts for option in words.DESCRIBE.get(part, ())}
            for option in self.network:
                if option in described:
                    yield (
                        f"{name(option)} has no effect: {', '.join(self.parts)} are left out; "
                        f"add {dialect.write('without', '')} to keep every part."
                    )
        if dialect.strict and self.network.get("norm") == "none" and "norm_place" in self.network:
            yield f"{name('norm_place')} has no effect: with norm none there are no norms."

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The parts that are left out."""
        return self.without if self.variant is None else words.LEFT_OUT[self.variant]

    @cached_property
    def spec(self) -> "Spec | None":
        """The design, or a model's structure as far as it is known before it is loaded."""
        from rankscope.core.network import Spec

        if self.model is not None:
            return self.sources.spec(self.location)
        masks: dict[str, Any] = {} if self.mask is None else {"mask": self.mask}
        if self.network.get("layer_masks") is not None:
            masks["layer_masks"] = list(map(self.draw_mask, self.network["layer_masks"]))
        return Spec(**{**words.BERT, **self.network, **masks})

    @cached_property
    def mask(self) -> "Mask | None":
        """The given mask; None without one."""
        return None if self.network.get("mask") is None else self.draw_mask(self.network["mask"])

    def draw_mask(self, mask: "str | Mask") -> "Mask":
        """A mask; a random one without its own seed uses that of the setup."""
        return _mask(mask, self.seed)

    @cached_property
    def location(self) -> str:
        """The folder or the name of the model."""
        assert self.model is not None
        return self.sources.locate(self.model)

    @cached_property
    def texts(self) -> "TextSamples":
        """The texts to read."""
        return self.sources.texts(self.text, self.samples)

    @cached_property
    def token_ids(self) -> tuple[tuple[int, ...], ...] | None:
        """The token ids to read instead of texts; None without any."""
        return None if self.ids is None else self.sources.ids(self.ids, self.samples)

    def key(self) -> dict[str, Any]:
        """What the numbers depend on, as JSON types.

        Equal designs have equal keys however they were written; a model is known by its files.
        """
        common = {
            "parts": sorted(set(self.parts)),
            "texts": self.texts.digest if self.ids is None else self.token_ids,
            "length": self.length if self.model is None else self._model_length,
            "special_tokens": self.special_tokens,
            "dtype": self.dtype,
            "device": self.device or "cpu",
        }
        if self.model is None:
            assert self.spec is not None
            return {"spec": self.spec.digest(seed=self.seed), **common}
        mask = None if self.mask is None else str(self.mask)
        said = {name: getattr(self, name) for name in ("at_init", "pickled", "tower", "seed")}
        contents = self.sources.contents(self.location, self._tokenizer)
        known = {"model": Path(self.location).name, "contents": contents, "mask": mask}
        return {**known, **said, **common}

    def outline(self) -> "Subject | None":
        """A subject with shapes only, for estimates; None if the shapes are not known."""
        from rankscope.ask._subject import outline

        if self.spec is None:
            return None
        rows = self.texts.samples if self.token_ids is None else self.token_ids
        if self.model is None:
            tokens = self.texts.longest(self.length)
        else:
            tokens = self._model_length or words.LENGTH
        return outline(self.spec, samples=len(rows), tokens=tokens).without(*self.parts)

    def subject(self, *, seeded: bool = False, any_model: bool = False) -> "Subject":
        """The network, drawn or loaded now, and its input.

        ``seeded`` means that the question also uses the seed, ``any_model`` that a model that
        cannot be converted is traced.
        """
        from rankscope.core.checks import usable_device

        usable_device(self.sources.dialect.name("device"), self.device)
        subject = self._random() if self.model is None else self._loaded(seeded, any_model)
        about = {key: said for key, said in subject.about.items() if key not in self.parts}
        left_out = {"without": ", ".join(self.parts)} if self.parts else {}
        return replace(subject.without(*self.parts), about={**about, **left_out})

    def _random(self) -> "Subject":
        import torch

        from rankscope.ask._subject import random_subject

        assert self.spec is not None
        subject = random_subject(
            self.spec,
            self.texts.samples,
            length=self.length,
            seed=self.seed,
            dtype=getattr(torch, self.dtype),
            device=self.device,
            special_tokens=self.special_tokens,
            read_from=self.texts.origin,
        )
        init = str(self.network.get("init", "bert"))
        return replace(subject, about={**subject.about, "init": init})

    def _loaded(self, seeded: bool, any_model: bool) -> "Subject":
        # First, so that a missing file is reported before the model is loaded.
        samples = None if self.text is None else self.texts.samples
        ids = self.token_ids

        import torch

        from rankscope.ask._models import model_subject
        from rankscope.models.families import load, load_any

        loaded = (load_any if any_model else load)(
            self.location,
            at_init=self.at_init,
            seed=self.seed,
            dtype=getattr(torch, self.dtype),
            device=self.device,
            pickled=self.pickled,
            tokenizer=self._tokenizer,
            tower=self.tower,
        )
        if self.sources.dialect.strict:
            self._refuse_idle(loaded, seeded)
        read_from = "" if self.text is None else self.texts.origin
        subject = model_subject(
            loaded,
            samples,
            ids=ids,
            length=self._model_length,
            samples=self.samples,
            special_tokens=self.special_tokens,
            seed=self.seed,
            read_from=read_from if self.ids is None else self.ids,
            pretrained=not self.at_init,
        )
        about = {**subject.about, "dtype": str(subject.x.dtype)}
        if self.mask is None:
            return replace(subject, about=about)
        network = subject.network.with_mask(self.mask)
        return replace(subject, network=network, about={**about, "mask": str(network.spec.mask)})

    @property
    def _model_length(self) -> int | None:
        """The maximum number of tokens of a model; None for as many as it has positions."""
        return self.length if "length" in self.given else None

    @property
    def _tokenizer(self) -> str | None:
        found = self.tokenizer
        return None if found is None else self.sources.locate(found, latest=False)

    def _refuse_idle(self, loaded: "Loaded | Unconverted", seeded: bool) -> None:
        """Raise if a given field has no effect for this model."""
        dialect = self.sources.dialect
        drawn = self.at_init or bool(loaded.media) or self.is_drawn(self.network.get("mask"))
        if "seed" in self.given and not (drawn or seeded):
            raise InputError(
                f"{dialect.said('seed', self.seed)} has no effect: {self.model} is pretrained "
                f"and reads text; {dialect.name('at_init')} draws its weights anew."
            )
        for name in ("text", "length", "ids", "tokenizer"):
            if loaded.media and name in self.given:
                what = "images" if loaded.sees_images else loaded.media
                raise InputError(
                    f"{self.model} reads {what}, so {dialect.name(name)} has no effect."
                )

    @staticmethod
    def is_drawn(*masks: Any) -> bool:
        """Whether some mask depends on the seed."""
        return any(_mask(mask, 0) != _mask(mask, 1) for mask in masks if mask is not None)


@lru_cache(maxsize=1024)
def _mask(mask: "str | Mask", seed: int) -> "Mask":
    from rankscope.core.masks import as_mask

    return as_mask(mask, seed=seed)


def options(asks: Asks) -> dict[str, tuple[Word, Any, Any]]:
    """Every field that is an option of the command line: its ``Word``, type and default."""
    usual = {"samples": asks.samples, "length": asks.length, "without": asks.without}
    defaults = {slot.name: slot.default for slot in fields(Setup)} | words.SHOWN | usual
    listed: dict[str, tuple[Word, Any, Any]] = {}
    for record in (Setup, NetworkOptions):
        for name, kind in record.__annotations__.items():
            for word in getattr(kind, "__metadata__", ()):
                if isinstance(word, Word):
                    listed[name] = (word, word.kind or get_args(kind)[0], defaults.get(name))
    return listed
