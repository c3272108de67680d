"""Every family can be diagnosed, whatever its scores, masks and norms are."""

import pytest
import torch

from rankscope.ask import Subject, model_subject
from rankscope.experiments.diagnosis import RULES
from rankscope.experiments.diagnosis._diagnose import judge
from rankscope.experiments.diagnosis._measure import measure
from rankscope.experiments.questions.diagnose import ENTRY, Config
from rankscope.models.families import load

from ...models.families.conftest import TINY, lively


def subject_of(name: str) -> Subject:
    loaded = load(lively(name))
    if loaded.sees_images:
        return model_subject(loaded, samples=1)
    ids = torch.randint(3, 97, (2, 36), generator=torch.Generator().manual_seed(0)).tolist()
    return model_subject(loaded, ids=ids)


@pytest.mark.parametrize("name", TINY)
def test_steps_add_up_and_every_kind_is_judged(name: str) -> None:
    subject = subject_of(name)
    measured = measure(subject, lambda _: None)
    total = sum(measured.changes.values()).sum(0)
    change = (measured.residual[-1] / measured.residual[0]).log10()
    torch.testing.assert_close(total, change, atol=2e-5, rtol=0.0)
    found, _ = judge(subject, measured, lambda _: None)
    assert len(found) == len(RULES) == 11


def test_every_chapter_is_there_for_a_model_with_a_score_of_its_own() -> None:
    found = ENTRY.run(Config(subject_of("llama"), chapters=("all",)), lambda _: None)
    left_out = [part.title for part in found.parts if "Left out:" in " ".join(part.sentences)]
    assert (left_out, len(found.parts)) == ([], 10)
