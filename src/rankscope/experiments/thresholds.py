"""From where on something counts as collapse: every threshold of a diagnosis, in one place.

All are conventions, chosen so that networks built to collapse in a known way are told by that way
and that ordinary trained models are not; docs/diagnose.md says why each is where it is.
"""

from typing import Final

COLLAPSED: Final = 1e-3
"""Relative residual under which tokens count as alike: a thousandth of their size."""
SHRUNK: Final = 0.1
"""Part of the largest relative residual so far under which a collapse counts as under way."""
HALVED: Final = 0.5
"""What a single layer leaves of the relative residual, below which that alone counts so, too."""
ONE_HOT: Final = 0.1
"""Share of even attention's entropy under which a layer counts as one-hot."""
SHARP: Final = 0.25
"""The same, for a layer on its way there."""
SINK: Final = 0.5
"""Weight on the first token from which a head counts as a sink."""
IDLE: Final = 0.05
"""Turn of the state, as a sine, under which a layer counts as the identity."""
IDLE_LAYERS: Final = 0.25
"""Part of the layers that must be idle."""
GROWN: Final = 3.0
"""Growth of the tokens in one layer that is told as the reason."""
NARROW: Final = 0.5
"""Mean cosine from which tokens lie in a cone, an angle of 60 degrees."""
MERGED: Final = 1e-3
"""Distance between two tokens, in lengths of the longer, below which they count as one."""
WIDTH_EXPONENT: Final = -0.25
"""Half of the −1/2 with which attention's output loses rank as the context grows."""
WIDTH_HINT: Final = -0.125
"""The same, for a network that may be on its way there."""
WORTH_TELLING: Final = 0.005
"""Decades, about one per cent, below which a loss is not told."""
NOISE_FACTOR: Final = 32
"""Relative residuals within this many units of the dtype's epsilon are rounding noise."""
