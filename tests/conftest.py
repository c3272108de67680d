"""Run-time checks of every shape annotation, switched on before rankscope is first imported.

Only annotations that name axes are checked. A plain ``Tensor`` or ``int`` is left alone, so that a
wrong kind of argument meets the sentence rankscope itself has for it, as it does for users; mypy
checks those. jaxtyping looks its checker up by name, hence the module registered below. It would
wrap every function, and one in thirteen names an axis: the others are left as they are written,
which halves the time of tests that call many of them.
"""

import functools
import inspect
import sys
from collections import Counter
from types import ModuleType
from typing import Any, get_args

import jaxtyping
from beartype import beartype
from jaxtyping import AbstractArray, install_import_hook, jaxtyped


def _names_axes(annotation: Any) -> bool:
    if inspect.isclass(annotation) and issubclass(annotation, AbstractArray):
        return True
    return any(_names_axes(part) for part in get_args(annotation))


def _check_axes(function: Any) -> Any:
    """beartype, blind to annotations without axes.

    jaxtyping asks once before a call and once after it. What was given has been looked at by then,
    and its axes are known: only what came back is left.
    """
    written = function.__annotations__
    after = written.get("return", Any) is not Any
    function.__annotations__ = {
        name: annotation
        for name, annotation in written.items()
        if _names_axes(annotation) and (name == "return" or not after)
    }
    return beartype(function)


def _check_where_axes_are_named(*, typechecker: Any) -> Any:
    """jaxtyping's decorator, which leaves functions and classes alone that name no axes."""

    def decorate(thing: Any) -> Any:
        made = thing.__init__ if inspect.isclass(thing) else thing
        written = getattr(made, "__annotations__", {}).values()
        if not any(isinstance(each, str) or _names_axes(each) for each in written):
            return thing  # text may name an axis
        watched = jaxtyped(thing, typechecker=typechecker)
        return watched if inspect.isclass(thing) else _for_some_calls(watched, thing)

    return decorate


_CHECKED_CALLS = 5
_calls: Counter[Any] = Counter()


def _for_some_calls(watched: Any, plain: Any) -> Any:
    """Check the first calls in each test: later layers and laps have the same axes again."""

    @functools.wraps(watched)
    def call(*given: Any, **named: Any) -> Any:
        if _calls[plain] == _CHECKED_CALLS:
            return plain(*given, **named)
        _calls[plain] += 1
        return watched(*given, **named)

    return call


jaxtyping.jaxtyped = _check_where_axes_are_named
_checker = ModuleType("rankscope_axes_checker")
_checker.check = _check_axes
sys.modules[_checker.__name__] = _checker
assert not any(name.split(".")[0] == "rankscope" for name in sys.modules), "too late to hook in"
import rankscope.arguments  # noqa: E402, F401  # checks kinds in every call: not to be slowed down

install_import_hook("rankscope", "rankscope_axes_checker.check")

import pytest  # noqa: E402
import torch  # noqa: E402

from rankscope.core.network import Network, Spec  # noqa: E402


def pytest_runtest_setup() -> None:
    _calls.clear()


torch.set_num_threads(1)  # for tensors as small as ours, waking a second thread is the whole cost


@pytest.fixture
def lively():
    """Make random networks in which nothing is trivially zero or one.

    ``lively(spec, seed=0)``: float64, and random biases and gains, which start at zero and one.
    """

    def make(spec: Spec, *, seed: int = 0) -> Network:
        net = Network.random(spec, seed=seed, dtype=torch.float64)
        generator = torch.Generator().manual_seed(seed + 1)
        with torch.no_grad():
            for parameter in net.parameters():
                if parameter.ndim == 1:
                    noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                    parameter += 0.3 * noise
        return net

    return make


@pytest.fixture
def tokens():
    """``tokens(2, 5, 8, seed=0)``: standard normal numbers of that shape in float64."""

    def make(*shape: int, seed: int = 0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 + seed)
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return make
