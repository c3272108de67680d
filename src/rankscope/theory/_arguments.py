"""Checks of plain arguments that several rooms of the theory share."""

from rankscope.errors import InputError, KindError


def check_integer(name: str, value: object, *, low: int = 1, high: int | None = None) -> int:
    """A whole number from ``low`` to ``high``, or an error that says what was expected."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise KindError(f"{name}={value!r} is a {type(value).__name__}, expected a whole number.")
    if value < low or (high is not None and value > high):
        expected = f"{low} or more" if high is None else f"{low} to {high}"
        raise InputError(f"{name}={value} is out of range; expected {expected}.")
    return value
