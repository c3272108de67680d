"""The trained tasks of Dong et al. 2021, figure 4: what is learnt, on what, and how well."""

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
from rankscope.process.progress import OnStep

SORTING, HULL, MEMORISATION = "sorting", "convex hull", "memorisation"


@checked
@dataclass(frozen=True)
class Plan:
    """The network for a task, how much it is shown, and when the task counts as learnt."""

    heads: int
    width: int
    recipe: Recipe
    examples: int
    evaluated: int
    """Examples on which accuracies are taken: new ones, or of what is memorised the first."""
    learnt: float
    """The accuracy on them from which on the task is learnt."""
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
    """A task with its examples for one seed, and the model that is to learn it."""

    train: Examples
    evaluate: Examples
    model: SequenceModel
    ordered: bool
    """Whether labels depend on the position, so that a guess may as well."""

    def to(self, device: str) -> "Lesson":
        """The same in float64 on another device, as paths are measured; training examples stay."""
        model = copy.deepcopy(self.model).double().to(device)
        return replace(self, evaluate=self.evaluate.to(device), model=model)

    def chance(self) -> float:
        """The accuracy of the best guess that does not look at the input.

        The guess is the commonest label in training, for each position where ``ordered``. Fitted to
        the labels it is then held against, it would look better than it is.
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
    task: str, plan: Plan, seed: int, *, spec: Spec, sentences: Sequence[str] = ()
) -> Lesson:
    """What one seed learns of a task."""
    if task == SORTING:
        sorting = Sorting(tokens=plan.tokens)
        model = SequenceModel.random(
            spec, outputs=sorting.symbols, symbols=sorting.symbols, positions=plan.tokens, seed=seed
        )
        drawn = [sorting.draw(n, seed, why) for n, why in _sizes(plan)]
        return Lesson(drawn[0], drawn[1], model, ordered=True)
    if task == HULL:
        model = SequenceModel.random(spec, outputs=2, coordinates=2, seed=seed)
        drawn = [Hull(plan.tokens).draw(n, seed, why) for n, why in _sizes(plan)]
        return Lesson(drawn[0], drawn[1], model, ordered=False)
    return _memorise(plan, seed, spec, sentences)


TASKS: Final = (MEMORISATION, SORTING, HULL)
"""In the paper's order."""


def learn(
    lessons: Sequence[Lesson], plan: Plan, seeds: Sequence[int], device: str, on_step: OnStep
) -> list[Trained]:
    """Train the models of all seeds at once; a batch is never larger than what there is."""
    batch = min(plan.recipe.batch, lessons[0].train.count)
    return train(
        [each.model for each in lessons],
        Classify(),
        [each.train for each in lessons],
        replace(plan.recipe, batch=batch),
        seeds=seeds,
        device=device,
        on_step=on_step,
    )


def resolve_device(device: str) -> str:
    """``auto`` is a GPU where there is one."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


def _sizes(plan: Plan) -> tuple[tuple[int, str], tuple[int, str]]:
    return (plan.examples, "training"), (plan.evaluated, "evaluation")


def _memorise(plan: Plan, seed: int, spec: Spec, sentences: Sequence[str]) -> Lesson:
    """The first sentences with two random labels; what is memorised is what is asked for."""
    chosen = tuple(sentences[: plan.examples])
    examples = Memorisation(chosen, tokens=plan.tokens).draw(seed)
    model = SequenceModel.random(
        spec,
        outputs=2,
        symbols=int(examples.inputs.max()) + 1,
        positions=examples.inputs.shape[1],
        seed=seed,
    )
    asked = slice(plan.evaluated)
    mask = examples.token_mask
    evaluated = Examples(
        examples.inputs[asked], examples.targets[asked], None if mask is None else mask[asked]
    )
    return Lesson(examples, evaluated, model, ordered=False)
