"""Annotations that name axes are checked while testing; functions without any are left alone."""

import importlib
import inspect
import pkgutil
import sys

import jaxtyping
import pytest
import torch
from jaxtyping import AbstractArray, Float, TypeCheckError
from torch import Tensor

from rankscope.core import deep, metrics, network, paths, theory, tracing
from rankscope.core.metrics._spectrum import matrix_norm

ROOMS = (deep, metrics, network, paths, theory, tracing)
watch = jaxtyping.jaxtyped(typechecker=sys.modules["rankscope_axes_checker"].check)
"""What conftest does to every function of ours."""


def _chain(function):
    """A function and those it wraps."""
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)


def _is_watched(function) -> bool:
    return any("jaxtyping" in each.__code__.co_filename for each in _chain(function))


def _functions():
    """Every function in these rooms, by name, with whether one of its annotations has axes."""
    for room in ROOMS:
        for found in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            yield from _functions_of(importlib.import_module(found.name))


def _functions_of(module):
    for name, thing in vars(module).items():
        if inspect.isfunction(thing) and thing.__module__ == module.__name__:
            kinds = inspect.get_annotations(thing).values()
            axes = any(inspect.isclass(each) and issubclass(each, AbstractArray) for each in kinds)
            yield f"{module.__name__}.{name}", thing, axes


def test_every_function_that_names_axes_is_watched() -> None:
    functions = list(_functions())
    assert [name for name, thing, axes in functions if axes and not _is_watched(thing)] == []
    assert sum(axes for *_, axes in functions) > 70


def test_wrong_axes_are_an_error_in_our_functions() -> None:
    assert matrix_norm(torch.ones(2, 3, 4), "fro").shape == (2,)
    with pytest.raises(
        TypeCheckError, match=r"parameters of rankscope\.core\.metrics\._spectrum\.matrix_norm"
    ):
        matrix_norm(torch.ones(3), "fro")


def test_what_is_given_and_what_comes_back_share_their_axes() -> None:
    @watch
    def pool(x: Float[Tensor, "token feature"], weights: Float[Tensor, "token"], number: int = 1):
        return weights @ x, number

    @watch
    def columns(x: Float[Tensor, "token feature"], number: int) -> Float[Tensor, "feature"]:
        return x[0, :number]

    x = torch.ones(3, 4)
    assert pool(x, torch.ones(3), "no int")[1] == "no int"  # mypy's to see
    with pytest.raises(TypeCheckError, match="parameter 'weights'"):
        pool(x, torch.ones(4))
    assert columns(x, 4).shape == (4,)
    with pytest.raises(TypeCheckError, match="return value"):
        columns(x, 3)


def test_functions_without_axes_are_left_as_they_are() -> None:
    def plain(x: Tensor, number: int) -> Tensor:
        return x * number

    assert watch(plain) is plain
