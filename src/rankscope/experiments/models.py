"""What claims about models have in common: the models of the 2021 paper, and what they read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rankscope.ask import SMALL, Model, built_in
from rankscope.experiments import kit
from rankscope.models.families import cached_folder

HUB: Final = {
    "bert-base": "google-bert/bert-base-uncased",
    "albert-base-v2": "albert/albert-base-v2",
    "xlnet-base": "xlnet/xlnet-base-cased",
}
"""Where the weights of the 2021 paper's models are."""
FAMILIES: Final = ("BERT", "ALBERT", "XLNet")


def papers_models() -> tuple[Model, ...]:
    """Those of the 2021 paper: at initialisation, and pretrained as far as they are at hand.

    At hand is what was downloaded before; nothing is downloaded now.
    """
    at_hand = [Model(hub_id, label=name) for name, hub_id in HUB.items() if cached_folder(hub_id)]
    return (*built_in(*HUB), *at_hand)


def trained_models() -> tuple[Model, ...]:
    """Pretrained models of the 2021 paper that are at hand; where none is, one trained here."""
    return tuple(model for model in papers_models() if not model.at_init) or (SMALL,)


@dataclass(frozen=True)
class ModelsConfig(kit.Config):
    """Models, and what each of them reads; the seed is that of random weights."""

    models: tuple[Model, ...] = field(default_factory=papers_models)
    texts: tuple[str, ...] | None = None  # the first bundled passages unless given
    samples: int = 1  # how many bundled passages
    length: int = 128  # tokens of a text at most


def by_family(checks: Mapping[str, bool], families: Mapping[str, str]) -> dict[str, Any]:
    """Checks of an ``Answer``: models of the 2021 paper's families as stated, others beyond it.

    ``families`` are those of the models by name. The verdict names the models tested.
    """
    stated = {name: holds for name, holds in checks.items() if families[name] in FAMILIES}
    others = {name: holds for name, holds in checks.items() if name not in stated}

    def on(subset: Mapping[str, bool]) -> kit.Phrase:
        tested = f"for {', '.join(subset)}"
        none = "name some with --models or --pretrained"
        return {"holds": tested, "fails": tested, "not tried": none}

    return {
        "stated": stated,
        "on": on(stated),
        "beyond": others or None,
        "on_beyond": on(others),
    }
