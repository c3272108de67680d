"""Masks by name, as on the command line: ``"window:8 | star:1"``."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import whole
from rankscope.core.masks import _rules as rules
from rankscope.core.masks._explicit import Explicit, Random
from rankscope.core.masks._mask import Mask, intersection, union
from rankscope.errors import SpecError


class _Name(NamedTuple):
    """How a mask is made from the numbers after its name, how many, and what they mean.

    The last number of a ``drawn`` mask is a seed, which may be omitted.
    """

    make: Callable[..., Mask]
    least: int
    most: int
    usage: str
    drawn: bool = False


def _window(before: int, after: int | None = None) -> rules.Window:
    return rules.Window(before, before if after is None else after)


NAMES = {
    "full": _Name(rules.Full, 0, 0, "full"),
    "causal": _Name(rules.Causal, 0, 0, "causal"),
    "window": _Name(_window, 1, 2, "window:8 (both ways) or window:8:2 (before, after)"),
    "causal-window": _Name(rules.causal_window, 1, 1, "causal-window:8"),
    "dilated": _Name(rules.Dilated, 2, 2, "dilated:8:2 (reach, step)"),
    "causal-dilated": _Name(partial(rules.Dilated, causal=True), 2, 2, "causal-dilated:8:2"),
    "strided": _Name(rules.Strided, 1, 1, "strided:8"),
    "causal-strided": _Name(partial(rules.Strided, causal=True), 1, 1, "causal-strided:8"),
    "fixed": _Name(rules.Fixed, 1, 1, "fixed:8"),
    "block": _Name(rules.BlockLocal, 1, 1, "block:16"),
    "star": _Name(rules.Star, 1, 1, "star:1"),
    "random": _Name(Random, 1, 2, "random:2 or random:2:7 (keys, seed)", drawn=True),
    "bigbird": _Name(
        rules.BigBird, 3, 4, "bigbird:3:1:2 (window, hubs, random keys; a seed may follow)", True
    ),
    "prefix": _Name(rules.Prefix, 1, 1, "prefix:4"),
}


@checked
def as_mask(mask: "str | Mask | Tensor", *, seed: int = 0) -> Mask:
    """A mask from its name, a boolean matrix, or itself.

    >>> from rankscope.core.masks import as_mask
    >>> str(as_mask("causal & window:8 | star:1"))
    'causal & window(-8, +8) | star(1)'
    >>> str(as_mask("random:2", seed=5)), str(as_mask("random:2:7", seed=5))
    ('random(2, seed 5)', 'random(2, seed 7)')

    Names are put together with ``|`` and ``&``, of which ``&`` binds tighter. ``seed`` is that of
    random masks whose name says none.
    """
    whole("seed", seed, least=0, error=SpecError)
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, Tensor):
        return Explicit.of(mask)
    return union(
        *(
            intersection(*(_read_name(name.strip(), mask, seed) for name in both.split("&")))
            for both in mask.split("|")
        )
    )


def _read_name(written: str, text: str, seed: int) -> Mask:
    """Parse one name; errors show the whole ``text``."""
    name, *numbers = written.split(":")
    if name not in NAMES:
        where = "" if written == text else f": {written!r}"
        known = ", ".join(entry.usage.split(" ")[0] for entry in NAMES.values())
        raise SpecError(
            f"mask={text!r}{where} is unknown; expected {known}, a combination with | or &, "
            "a Mask such as Window(before=2, after=2), or a boolean (query, key) matrix."
        )
    form = NAMES[name]
    are_numbers = all(text.isascii() and text.isdigit() and len(text) < 19 for text in numbers)
    if not are_numbers or not form.least <= len(numbers) <= form.most:
        raise SpecError(f"mask={text!r}: {written!r} cannot be read; write {form.usage}.")
    arguments = [int(digits) for digits in numbers]
    if form.drawn and len(arguments) < form.most:
        arguments.append(seed)
    try:
        return form.make(*arguments)
    except SpecError as error:
        raise SpecError(f"mask={text!r}: {error}") from error
