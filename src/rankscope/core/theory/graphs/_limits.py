"""What remains when attention has forgotten: the weight of each position in the collapsed state.

Attention matrices are ``(..., query, key)`` and row-stochastic; layers multiply from the left.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import real
from rankscope.core.theory.graphs._digraph import Digraph, closed_classes
from rankscope.core.theory.graphs._stochastic import normalize_rows
from rankscope.errors import InputError, ShapeError

_LARGE, _TINY = 1e100, 1e-290


@checked
def perron_weights(attention: Tensor) -> Tensor:
    """The left Perron vector π = πP: the weight of each position in the collapsed state.

    >>> perron_weights(torch.tensor([[0.5, 0.5], [0.25, 0.75]]))
    tensor([0.3333, 0.6667], dtype=torch.float64)

    Matrices are ``(..., query, key)``, weights ``(..., key)``, zero outside the closed class. With
    more than one closed class there is no single vector, and that is an error: see
    ``class_weights``. In a class whose period is above 1, powers of P tend to π only on average. A
    weight of exactly 0 is no edge.
    """
    p = normalize_rows(attention, None, name="attention")
    found = []
    for matrix in p.flatten(0, -3) if p.ndim > 2 else p.unsqueeze(0):
        each = class_weights(matrix)
        if len(each) > 1:
            raise InputError(
                f"the attention has {len(each)} closed classes of tokens, each with its own limit, "
                "so there is no single vector; class_weights gives one for each of them."
            )
        found.append(each[0])
    return torch.stack(found).view(p.shape[:-1])


@checked
def class_weights(attention: Tensor) -> tuple[Tensor, ...]:
    """One Perron vector for each closed class of a single ``(query, key)`` matrix.

    >>> [each.tolist() for each in class_weights(torch.eye(2))]
    [[1.0, 0.0], [0.0, 1.0]]

    By elimination without a subtraction (Grassmann, Taksar and Heyman 1985), so that small weights
    have as many digits as large ones, unless they are too small for a float next to the largest.
    """
    if isinstance(attention, Tensor) and attention.ndim != 2:
        raise ShapeError(
            f"attention has shape {tuple(attention.shape)}, expected one (query, key) matrix; "
            "take one of the batch."
        )
    p = normalize_rows(attention, None, name="attention").detach()
    p = torch.where(p < _TINY, 0.0, p)  # their reciprocals would be infinite
    query, key = p.cpu().nonzero().T.contiguous().numpy()
    weights = []
    for members in closed_classes(Digraph.from_pairs(query, key, len(p))):
        at = torch.from_numpy(members).to(p.device)
        padded = p.new_zeros(len(p))
        padded[at] = _stationary_weights(p[at][:, at])
        weights.append(padded)
    return tuple(weights)


@checked
def limit_weights(
    matrices: Sequence[Tensor], classes: Sequence[Sequence[int]]
) -> tuple[Tensor, ...]:
    """For each closed class, what its tokens hold of each position's input after all layers.

    >>> [each.tolist() for each in limit_weights([torch.eye(2)] * 3, [[0], [1]])]
    [[1.0, 0.0], [0.0, 1.0]]

    The mean of the class's rows in the product of all ``(query, key)`` matrices, the first first.
    """
    if not matrices:
        raise InputError("there is no matrix to multiply; give at least one layer's.")
    first = matrices[0]
    for matrix in matrices:
        real(matrix, name="matrices", axes="(query, key)", least=2)
        if matrix.ndim != 2 or (matrix.shape, matrix.dtype) != (first.shape, first.dtype):
            raise ShapeError(
                f"matrices have shapes {tuple(first.shape)} and {tuple(matrix.shape)}; give "
                "square ones of one size and dtype."
            )
    tokens = len(first)
    if any(not 0 <= member < tokens for members in classes for member in members):
        raise InputError(f"classes hold tokens that are not there; they are 0 to {tokens - 1}.")
    if tokens != first.shape[1] or not all(classes):
        raise ShapeError("limit_weights takes square matrices and classes that are not empty.")
    rows = torch.zeros(len(classes), len(matrices[0])).to(matrices[0])
    for row, members in zip(rows, classes, strict=True):
        row[list(members)] = 1 / len(members)
    for matrix in reversed(matrices):  # from the left: a few rows times a matrix
        rows = rows @ matrix
    return tuple(rows)


def _stationary_weights(p: Float[Tensor, "query key"]) -> Float[Tensor, "key"]:
    """Eliminate the last state repeatedly, then restore the weights one by one."""
    p = p.clone()
    for last in range(len(p) - 1, 0, -1):
        p[:last, last] /= p[last, :last].sum()
        p[:last, :last] += p[:last, last, None] * p[last, :last]
    weights = p.new_ones(len(p))
    for state in range(1, len(p)):
        weights[state] = weights[:state] @ p[:state, state]
        if weights[state] > _LARGE:  # later states may carry almost all the weight
            weights[: state + 1] /= weights[state].clone()
    return weights / weights.sum()
