"""Train small models: a network with an encoder and a readout, several seeds at once."""

from rankscope.models.training._language import LanguageConfig, LanguageModel, small_language_model
from rankscope.models.training._model import SequenceModel
from rankscope.models.training._tasks import IGNORED as IGNORED
from rankscope.models.training._tasks import (
    Approach,
    Classify,
    Examples,
    Hull,
    Memorisation,
    Sorting,
    Task,
    read_sentences,
)
from rankscope.models.training._tasks import split_sentences as split_sentences
from rankscope.models.training._train import Recipe, Trained, train

__all__ = [
    "Approach",
    "Classify",
    "Examples",
    "Hull",
    "LanguageConfig",
    "LanguageModel",
    "Memorisation",
    "Recipe",
    "SequenceModel",
    "Sorting",
    "Task",
    "Trained",
    "read_sentences",
    "small_language_model",
    "train",
]
