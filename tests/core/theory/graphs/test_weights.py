"""The weight of each token in the collapsed state: Perron vectors by hand and to all digits."""

import numpy as np
import pytest
import torch

from rankscope.core.masks import window
from rankscope.core.theory import class_weights, perron_weights
from rankscope.errors import InputError, ShapeError


def double(rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_perron_by_hand():
    """Causal attention listens to the first token alone; a window to its weights' balance."""
    causal = (torch.ones(4, 4).tril() / torch.arange(1, 5)[:, None]).double()
    assert perron_weights(causal).tolist() == [1, 0, 0, 0]
    # Uniform over a window: as many votes as neighbours, since the graph is symmetric.
    allowed = window(1).matrix(4).double()
    assert perron_weights(allowed / allowed.sum(-1, keepdim=True)).tolist() == pytest.approx(
        [0.2, 0.3, 0.3, 0.2], rel=1e-15
    )
    assert perron_weights(torch.ones(1, 1)).tolist() == [1]
    swap = double([[0, 1], [1, 0]])
    assert perron_weights(swap).tolist() == [0.5, 0.5]


def test_perron_of_nearly_separate_tokens():
    """They listen to each other with 10⁻¹⁸ and 3·10⁻¹⁸, which no eigenvalue solver sees."""
    p = double([[1, 1e-18], [3e-18, 1]])
    assert perron_weights(p).tolist() == pytest.approx([0.75, 0.25], rel=1e-15)


def test_perron_is_what_powers_tend_to(tokens):
    p = tokens(2, 3, 6, 6).softmax(-1)
    limit = torch.linalg.matrix_power(p, 200)
    torch.testing.assert_close(
        perron_weights(p), limit[..., 0, :], rtol=1e-12, atol=0, check_stride=False
    )
    p[..., :3, 3:] = 0  # tokens 0 to 2 are closed, the others pass on
    p /= p.sum(-1, keepdim=True)
    limit = torch.linalg.matrix_power(p, 400)
    torch.testing.assert_close(perron_weights(p), limit[..., 5, :], rtol=1e-11, atol=1e-15)
    assert (perron_weights(p)[..., 3:] == 0).all()


def test_perron_of_two_closed_classes():
    p = double([[0.5, 0.5, 0, 0], [0.25, 0.75, 0, 0], [0, 0, 1, 0], [0.1, 0.2, 0.3, 0.4]])
    first, second = class_weights(p)
    assert first.tolist() == pytest.approx([1 / 3, 2 / 3, 0, 0], rel=1e-15)
    assert second.tolist() == [0, 0, 1, 0]
    with pytest.raises(InputError, match="2 closed classes"):
        perron_weights(p)
    with pytest.raises(ShapeError, match=r"one \(query, key\) matrix"):
        class_weights(p.unsqueeze(0))


def test_perron_against_numpy():
    generator = np.random.default_rng(0)
    p = generator.random((7, 7)) ** 4
    p /= p.sum(1, keepdims=True)
    values, vectors = np.linalg.eig(p.T)
    wanted = vectors[:, values.argmax()].real
    assert perron_weights(torch.from_numpy(p)).numpy() == pytest.approx(
        wanted / wanted.sum(), rel=1e-12
    )


def test_weights_at_the_end_of_the_floats():
    drift = torch.diag(torch.full((599,), 0.9, dtype=torch.float64), 1)
    drift += torch.diag(torch.full((599,), 0.1, dtype=torch.float64), -1)
    drift[0, 0], drift[-1, -1] = 0.1, 0.9
    (weights,) = class_weights(drift)
    assert float(weights.sum()) == pytest.approx(1)
    assert float(weights[-1] / weights[-2]) == pytest.approx(9)
    tiny = torch.tensor([[0.5, 0.5], [1e-320, 1.0]], dtype=torch.float64)
    assert class_weights(tiny)[0].tolist() == [0.0, 1.0]
