"""Models an experiment looks at, named in its configuration and loaded when their turn comes."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from rankscope.arguments import checked
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.models.families import BUILTIN, Loaded, cached_folder, load
from rankscope.models.text import passages
from rankscope.models.training import small_language_model
from rankscope.process.fingerprints import folder_fingerprint


@checked
@dataclass(frozen=True)
class Case:
    """A model by its source: a built-in name with random weights, or a folder or Hub id.

    >>> Case("bert-base").name, Case("models/mini", trained=True, label="Mini").name
    ('bert-base (init)', 'Mini (pretrained)')
    """

    source: str
    trained: bool = False
    label: str = ""
    pickled: bool = False

    @property
    def name(self) -> str:
        """What it is called in tables and charts."""
        named = self.label or Path(self.source).name
        return f"{named} ({'pretrained' if self.trained else 'init'})"

    def describe(self) -> dict[str, Any]:
        """Its fields, and what is in its folder: other weights at the same place are another."""
        fields_ = {each.name: getattr(self, each.name) for each in fields(self)}
        folder = Path(self.source).expanduser()
        place = folder if folder.is_dir() else self.trained and cached_folder(self.source)
        return {**fields_, "contents": folder_fingerprint(place)} if place else fields_

    def twin(self) -> "Case":
        """The same architecture with random weights."""
        return replace(self, trained=False)

    def subject(
        self, config: "ModelsConfig", on_step: kit.OnStep = kit.silent, *, batch_size: int = 8
    ) -> kit.Subject:
        """The model, loaded now, and what it reads; ``on_step`` is told when it is there."""
        loaded = self.load(seed=config.seed)
        x, token_mask = inputs(
            loaded, config.texts, config.length, samples=config.samples, seed=config.seed
        )
        on_step(1.0)
        about = {"family": loaded.family.name}
        return kit.Subject(loaded.network, x, token_mask, about=about, batch_size=batch_size)

    def load(self, *, seed: int = 0) -> Loaded:
        """The model, verified; ``seed`` is that of random weights."""
        return load(self.source, init=not self.trained, seed=seed, pickled=self.pickled)


@dataclass(frozen=True)
class TrainedHere(Case):
    """A small language model, trained on the bundled passages when its turn comes (a minute).

    It stands in for a pretrained model where none is at hand.
    """

    source: str = "small"
    trained: bool = True

    @property
    def name(self) -> str:
        """What it is called in tables and charts."""
        return f"{self.source} ({'trained here' if self.trained else 'init'})"

    def describe(self) -> dict[str, Any]:
        """Its fields: it comes from no folder."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def subject(
        self, config: "ModelsConfig", on_step: kit.OnStep = kit.silent, *, batch_size: int = 8
    ) -> kit.Subject:
        """The model, trained now, and what it reads: fewer tokens than it has features.

        LayerNorm takes one dimension from the features, so that as many tokens could not all be
        independent.
        """
        found = small_language_model(config.seed, on_step=on_step)
        if found.accuracy < 2 * found.chance:
            raise InputError(
                f"the small model trained here fills in {found.accuracy:.2f} of the masked tokens, "
                f"hardly more than a guess ({found.chance:.2f}); pass a trained one (--pretrained)."
            )
        texts = passages()[: config.samples] if config.texts is None else config.texts
        length = min(config.length, 3 * found.network.spec.width // 4)
        read = (found if self.trained else found.twin()).read(texts, length=length)
        skill = f"fills in {found.accuracy:.0%} of masked tokens, a guess {found.chance:.0%}"
        about = {"family": "trained here", **({"skill": skill} if self.trained else {})}
        return kit.Subject(*read, about=about, batch_size=batch_size)


HUB: Final = {
    "bert-base": "google-bert/bert-base-uncased",
    "albert-base-v2": "albert/albert-base-v2",
    "xlnet-base": "xlnet/xlnet-base-cased",
}
"""Where the weights of the 2021 paper's models are."""
FAMILIES: Final = ("BERT", "ALBERT", "XLNet")


def papers_models() -> tuple[Case, ...]:
    """Those of the 2021 paper: at initialisation, and pretrained as far as they are at hand.

    At hand is what was downloaded before; nothing is downloaded now.
    """
    at_hand = [
        Case(hub_id, trained=True, label=name)
        for name, hub_id in HUB.items()
        if cached_folder(hub_id)
    ]
    return (*at_initialisation(*HUB), *at_hand)


def trained_models() -> tuple[Case, ...]:
    """Pretrained models of the 2021 paper that are at hand; where none is, one trained here."""
    return tuple(case for case in papers_models() if case.trained) or (TrainedHere(),)


def at_initialisation(*names: str) -> tuple[Case, ...]:
    """Built-in architectures with random weights."""
    unknown = [name for name in names if name not in BUILTIN]
    if unknown:
        raise InputError(f"{unknown[0]} is not built in; choose {', '.join(BUILTIN)}.")
    return tuple(Case(name) for name in names)


def by_name(cases: Sequence[Case]) -> dict[str, Case]:
    """Cases under their names; those that would be called alike are numbered.

    >>> list(by_name([Case("a/mini", trained=True), Case("b/mini", trained=True)]))
    ['mini (pretrained)', 'mini (pretrained) 2']
    """
    if not cases:
        raise InputError("there is no model to try; name at least one.")
    named: dict[str, Case] = {}
    for case in cases:
        named[free_name(case.name, named)] = case
    return named


def free_name(name: str, taken: Container[str]) -> str:
    """A name, numbered if it is taken.

    >>> free_name("mini", ["mini", "mini 2"])
    'mini 3'
    """
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name} {number}"
    return free


def inputs(
    loaded: Loaded,
    texts: Sequence[str] | None,
    length: int,
    *,
    samples: int = 1,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """What a model reads, and its token mask.

    Without ``texts`` these are the first ``samples`` bundled passages, or as many images of noise
    for a vision model, which takes no texts.
    """
    if loaded.sees_images:
        if texts is not None:
            raise InputError(f"{loaded.name} takes images, not texts; leave the texts out.")
        read = loaded.inputs(loaded.noise_images(samples, seed=seed))
    else:
        read = loaded.inputs(passages()[:samples] if texts is None else texts, length=length)
    return read.x, read.token_mask


@dataclass(frozen=True)
class ModelsConfig(kit.Config):
    """Models, and what each of them reads; the seed is that of random weights."""

    models: tuple[Case, ...] = field(default_factory=papers_models)
    texts: tuple[str, ...] | None = None
    """What the models read; the first bundled passages unless given."""
    samples: int = 1
    """How many bundled passages."""
    length: int = 128
    """Tokens of a text at most."""


def by_family(
    borne_out: Mapping[str, bool], families: Mapping[str, str], *, depends: str = ""
) -> dict[str, Any]:
    """Checks of an ``Answer``: models of the 2021 paper's families as stated, others beyond it.

    ``families`` are those of the models by name. A verdict says which models were tried, or on what
    it ``depends``.
    """
    stated = {name: held for name, held in borne_out.items() if families[name] in FAMILIES}
    others = {name: held for name, held in borne_out.items() if name not in stated}

    def on(checks: Mapping[str, bool]) -> str:
        if not checks:
            return "name some with --models or --pretrained"
        return depends if len(set(checks.values())) > 1 else f"tried on {', '.join(checks)}"

    return {
        "stated": stated,
        "on": on(stated),
        "beyond": others or None,
        "on_beyond": on(others),
    }
