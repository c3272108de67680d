"""Small models trained here: our network with an encoder and a readout, several seeds at once."""

from rankscope.training._hull import Hull
from rankscope.training._hull import on_hull as on_hull
from rankscope.training._language import LanguageConfig, LanguageModel, small_language_model
from rankscope.training._memorisation import Memorisation
from rankscope.training._memorisation import split_sentences as split_sentences
from rankscope.training._model import SequenceModel
from rankscope.training._sentences import read_sentences
from rankscope.training._sorting import Sorting
from rankscope.training._task import IGNORED as IGNORED
from rankscope.training._task import Approach, Classify, Examples, Task
from rankscope.training._train import Recipe, Trained, train

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
