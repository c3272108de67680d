"""The trained tasks of Dong et al. 2021, figure 4: networks, examples and accuracy."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.network import Spec
from rankscope.models.training import (
    IGNORED,
    Classify,
    Examples,
    Hull,
    Memorisation,
    Recipe,
    SequenceModel,
    Sorting,
    Trained,
    train,
)
from rankscope.process import OnStep

TASKS: Final = ("memorisation", "sorting", "convex hull")
"""In the paper's order."""
MEMORISATION, SORTING, HULL = TASKS


@checked
@dataclass(frozen=True)
class TaskPlan:
    """The network for a task, the number of examples, and when the task counts as learnt."""

    heads: int
    width: int
    recipe: Recipe
    examples: int
    evaluated: int  # on which accuracies are taken: new ones, or of what is memorised the first
    learnt: float  # the accuracy on them from which on the task is learnt
    tokens: int

    def spec(self, layers: int, mlp_ratio: float) -> Spec:
        """Attention and skips, with LayerNorm after each sum, as in the paper's code."""
        return Spec(
            layers,
            self.heads,
            self.width,
            mlp_ratio=mlp_ratio,
            norm_place="post",
            init="xavier",
        )


@dataclass(frozen=True, eq=False)
class Lesson:
    """A task with its examples for one seed, and the model to train."""

    train: Examples
    evaluate: Examples
    model: SequenceModel
    ordered: bool  # whether labels depend on the position, so that a guess may as well

    def to(self, device: str) -> "Lesson":
        """A float64 copy on another device for measuring paths; training examples are not moved."""
        model = copy.deepcopy(self.model).double().to(device)
        return replace(self, evaluate=self.evaluate.to(device), model=model)

    def chance(self) -> float:
        """The accuracy of the best constant guess, independent of the input.

        The guess is the commonest label in training, for each position where ``ordered``. It is
        fitted to training labels, because fitting to the test labels would overestimate it.
        """
        labels = self.train.targets
        classes = torch.arange(int(labels.max()) + 1, device=labels.device)
        counts = (labels.unsqueeze(-1) == classes).sum(0)  # (token, class); ignored ones in none
        guess = (counts if self.ordered else counts.sum(0)).argmax(-1)
        return self._share_right(guess.to(self.evaluate.targets.device))

    def accuracy(self, outputs: Tensor) -> float:
        """The share of tokens whose output is largest at their label."""
        return self._share_right(outputs.argmax(-1))

    def _share_right(self, labels: Tensor) -> float:
        targets = self.evaluate.targets
        right = (labels == targets)[targets != IGNORED]
        return float(right.double().mean())


def lesson(
    task: str, plan: TaskPlan, seed: int, *, spec: Spec, sentences: Sequence[str] = ()
) -> Lesson:
    """The examples and the model of one seed; sentences have two random labels."""
    if task == MEMORISATION:
        # What is memorised is what is asked for.
        shown = Memorisation(tuple(sentences[: plan.examples]), tokens=plan.tokens).draw(seed)
        asked, mask = slice(plan.evaluated), shown.token_mask
        assert mask is not None  # texts have padding
        evaluated = Examples(shown.inputs[asked], shown.targets[asked], mask[asked])
        sizes = {"symbols": int(shown.inputs.max()) + 1, "positions": shown.inputs.shape[1]}
        model = SequenceModel.random(spec, outputs=2, seed=seed, **sizes)
        return Lesson(shown, evaluated, model, ordered=False)
    drawer: Sorting | Hull = Hull(plan.tokens)
    sizes = {"outputs": 2, "coordinates": 2}
    if task == SORTING:
        drawer = sorting = Sorting(tokens=plan.tokens)
        sizes = {"outputs": sorting.symbols, "symbols": sorting.symbols, "positions": plan.tokens}
    return Lesson(
        drawer.draw(plan.examples, seed, "training"),
        drawer.draw(plan.evaluated, seed, "evaluation"),
        SequenceModel.random(spec, seed=seed, **sizes),
        ordered=task == SORTING,
    )


def learn(
    lessons: Sequence[Lesson], plan: TaskPlan, seeds: Sequence[int], device: str, on_step: OnStep
) -> list[Trained]:
    """Train the models of all seeds together; a batch is at most the whole training set."""
    batch = min(plan.recipe.batch, lessons[0].train.count)
    return train(
        [lesson.model for lesson in lessons],
        Classify(),
        [lesson.train for lesson in lessons],
        replace(plan.recipe, batch=batch),
        seeds=seeds,
        device=device,
        on_step=on_step,
    )
