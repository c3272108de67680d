"""Numbers as people read them, however small or large; plain floats in, text out."""

import math


def format_power(log10: float) -> str:
    """A number of any size, given by its logarithm.

    >>> format_power(-1.0), format_power(-47003.123), format_power(-math.inf)
    ('0.1', '10^-47,003.1', '0')
    """
    if math.isinf(log10) or math.isnan(log10):
        return "0" if log10 < 0 else "infinity" if log10 > 0 else "unknown"
    if abs(log10) < 4:
        return f"{10**log10:.3g}"
    return f"10^{log10:,.1f}" if abs(log10) < 1e6 else f"10^({log10:.4g})"


def format_range(low: float, high: float) -> str:
    """Two numbers as a range, or one of them if they agree to three digits.

    >>> format_range(0.5, 2), format_range(3, 3.0001)
    ('0.5 to 2', '3')
    """
    if math.isclose(low, high, rel_tol=1e-3):
        return f"{low:.3g}"
    return f"{low:.3g} to {high:.3g}"


def format_count(count: int, noun: str) -> str:
    """A number of things, in the singular or the plural.

    >>> format_count(1, "layer"), format_count(12, "layer")
    ('1 layer', '12 layers')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"
