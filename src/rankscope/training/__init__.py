"""Small models trained here: our network with an encoder and a readout, several seeds at once."""

from rankscope.training._model import SequenceModel
from rankscope.training._task import Approach, Classify, Examples, Task
from rankscope.training._train import Recipe, Trained, train

__all__ = [
    "Approach",
    "Classify",
    "Examples",
    "Recipe",
    "SequenceModel",
    "Task",
    "Trained",
    "train",
]
