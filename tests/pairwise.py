"""A few cases out of a full product, in which every two values still meet."""

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Case = dict[str, Any]


def pairwise(
    factors: Mapping[str, Sequence[Any]],
    *together: tuple[str, ...],
    possible: Callable[[Case], bool] = lambda _: True,
) -> list[Case]:
    """Cases in which every possible pair of values of two factors occurs at least once.

    Factors that act on one another are named ``together``: all their combinations occur. The same
    cases each time; values must be hashable.
    """
    draw = random.Random(0)
    groups = [*combinations(factors, 2), *together]
    missing = {
        (group, values)
        for group in groups
        for values in product(*(factors[name] for name in group))
    }
    cases: list[Case] = []
    for group, values in sorted(missing, key=lambda one: (-len(one[0]), repr(one))):
        if (group, values) not in missing:
            continue
        fixed = dict(zip(group, values, strict=True))
        tried = [
            {name: fixed.get(name, draw.choice(several)) for name, several in factors.items()}
            for _ in range(40)
        ]
        tried = [case for case in tried if possible(case)]
        if tried:  # else the pair cannot occur
            cases.append(max(tried, key=lambda case: len(_met(case, groups) & missing)))
            missing -= _met(cases[-1], groups)
    return cases


def _met(case: Case, groups: Sequence[tuple[str, ...]]) -> set[tuple[Any, ...]]:
    return {(group, tuple(case[name] for name in group)) for group in groups}
