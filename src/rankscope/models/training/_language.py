"""A small BERT-like model, trained on the bundled passages with masked language modelling."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rankscope.arguments import Count, Range, Share, checked
from rankscope.core.network import Network, Spec
from rankscope.errors import InputError
from rankscope.models.text import Tokenizer, passages
from rankscope.models.training._model import SequenceModel
from rankscope.models.training._tasks import IGNORED, Classify, Examples
from rankscope.models.training._train import Recipe, train
from rankscope.process import OnStep
from rankscope.streams import stream


@checked
@dataclass(frozen=True)
class LanguageConfig:
    """Shape and training of the small language model; the defaults take about a minute.

    >>> from rankscope.models.training import LanguageConfig
    >>> LanguageConfig(layers=2, width=32).spec.mlp_width
    128
    """

    layers: Count = 6
    heads: Count = 4
    width: Count = 64
    length: Annotated[int, Range(3, 1_000_000)] = 64
    """Maximum number of tokens: the model has no further positions."""
    masked: Share = 0.15
    """The share of tokens to predict, as in BERT."""
    copies: Count = 16
    """The number of copies of each stretch of text, each with other tokens masked."""
    recipe: Recipe = field(default_factory=lambda: Recipe(1000, 8))

    @property
    def spec(self) -> Spec:
        """BERT's block: post-norm, GELU, four times as many hidden units."""
        return Spec(
            self.layers, self.heads, self.width, norm_place="post", norm_eps=1e-12, init="xavier"
        )


@checked
@dataclass(frozen=True)
class LanguageModel:
    """A trained model, and its accuracy on masked tokens.

    >>> from rankscope.models.training import LanguageConfig, Recipe, small_language_model
    >>> config = LanguageConfig(layers=1, heads=1, width=8, length=8, copies=1, recipe=Recipe(1, 4))
    >>> model = small_language_model(config=config)
    >>> model.network.spec.layers, 0 < model.chance < 1
    (1, True)

    ``chance`` is the accuracy of always predicting the most frequent token.
    """

    model: SequenceModel
    length: int
    accuracy: float
    chance: float
    untrained: SequenceModel  # the model before training

    def twin(self) -> "LanguageModel":
        """The untrained twin: the same model with its weights before training."""
        return replace(self, model=self.untrained, accuracy=math.nan)

    @property
    def network(self) -> Network:
        """Its blocks, as a ``Network``."""
        return self.model.network

    def read(
        self, texts: Sequence[str], *, length: int | None = None
    ) -> tuple[Network, Float[Tensor, "batch token feature"], Bool[Tensor, "batch token"]]:
        """The network, its inputs for these texts, and their token mask.

        Each text is truncated to ``length`` tokens, at most the number of positions.
        """
        if not texts:
            raise InputError("read takes a list of one or more texts.")
        most = self.length if length is None else min(length, self.length)
        ids = _pad([Tokenizer.bundled()(text, length=most) for text in texts])
        return self.network, self.model.embed(ids), ids != 0


_DEFAULT: Final = LanguageConfig()
# Models trained in this process: several claims use the same one.
_TRAINED: Final[dict[tuple[int, LanguageConfig], LanguageModel]] = {}


@checked
def small_language_model(
    seed: int = 0, *, config: LanguageConfig = _DEFAULT, on_step: OnStep | None = None
) -> LanguageModel:
    """A BERT-like model trained on the bundled passages; the same one every time for a seed.

    >>> from rankscope.models.training import LanguageConfig, Recipe, small_language_model
    >>> config = LanguageConfig(layers=1, heads=1, width=8, length=8, copies=1, recipe=Recipe(1, 4))
    >>> net, x, token_mask = small_language_model(config=config).read(["A rose is a rose."])
    >>> x.shape
    torch.Size([1, 8, 8])

    A stand-in for claims about trained models: it has read about five thousand words.
    """
    if (seed, config) in _TRAINED:
        if on_step is not None:
            on_step(1.0)
        return _TRAINED[seed, config]
    mask_id = len(Tokenizer.bundled().vocabulary)
    examples = _masked(seed, config, mask_id)
    model = SequenceModel.random(
        config.spec, outputs=mask_id, symbols=mask_id + 1, positions=config.length, seed=seed
    )
    (result,) = train([model], Classify(), [examples], config.recipe, seeds=[seed], on_step=on_step)
    asked = examples.targets[examples.targets != IGNORED]
    chance = float(asked.bincount().max() / len(asked))
    trained = LanguageModel(result.model.eval(), config.length, result.score, chance, model)
    _TRAINED[seed, config] = trained
    return trained


def _masked(seed: int, config: LanguageConfig, mask_id: int) -> Examples:
    """Stretches of the passages with some tokens masked; only those have labels."""
    tokenizer = Tokenizer.bundled()
    most = config.length - 2  # CLS and SEP
    stretches = []
    for text in passages():
        first, *inner, last = tokenizer(text)
        starts = range(0, len(inner), most)
        stretches += [[first, *inner[at : at + most], last] for at in starts]
    ids = _pad(stretches).repeat(config.copies, 1)
    drawn = torch.rand(ids.shape, generator=stream(seed, "masked tokens"))
    hidden = (drawn < config.masked) & (ids > 2)  # never CLS, SEP or padding
    hidden[:, 1] |= ~hidden.any(1)  # at least one
    return Examples(
        torch.where(hidden, mask_id, ids), torch.where(hidden, ids, IGNORED), token_mask=ids != 0
    )


def _pad(rows: Sequence[Sequence[int]]) -> Tensor:
    ids: Tensor = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return ids
