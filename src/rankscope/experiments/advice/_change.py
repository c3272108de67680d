"""One change of a design."""

from dataclasses import dataclass

from rankscope.core.network import Spec


@dataclass(frozen=True)
class Change:
    """What is changed, in a few words; the spec it makes; what it costs that cannot be counted.

    ``kind`` is the alternative it comes from, such as "skips".
    """

    words: str
    spec: Spec
    drawback: str = ""
    kind: str = ""
