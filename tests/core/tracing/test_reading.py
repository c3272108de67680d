"""What is read of any model is right, or refused with an error of ours; never wrong."""

import numpy as np
import pytest
import torch

from rankscope.core.tracing import trace
from rankscope.errors import RankscopeError

from .handwritten import TRICKY


def by_hand(case):
    """Dispersion of every state the model kept, without any code of ours."""
    figures = []
    for state in case.model.states:
        masks = [None] * len(state) if case.tokens is None else case.tokens.numpy()
        for sample, mask in zip(state.double().numpy(), masks, strict=True):
            rows = sample if mask is None else sample[mask]
            figures.append(np.sqrt(((rows - rows.mean(0)) ** 2).sum()))
    return figures


def reading(case):
    """``right``, ``refused`` or ``wrong``; any other error is raised."""
    torch.manual_seed(0)
    try:
        traced = trace(case.model, case.inputs, metrics=["dispersion"])
    except RankscopeError as error:
        assert len(str(error)) > 40
        return "refused"
    expected = by_hand(case)
    found = traced.columns["value"]
    same = len(found) == len(expected) and np.allclose(found, expected, rtol=2e-5, atol=1e-6)
    return "right" if same else "wrong"


def test_there_are_enough_of_them():
    assert len(TRICKY) >= 105


@pytest.mark.parametrize("name", TRICKY)
def test_right_or_refused(name):
    torch.manual_seed(0)
    assert reading(TRICKY[name]()) != "wrong"
