"""How long do exact graph facts of a mask of 32,768 tokens take?"""

import time

from measuring import Ratio
from rankscope.core.theory import graph_facts

_TOKENS = 32_768
_BAR = 5.0
"""Seconds for one mask."""
_HELD = ("window:1", "window:256", "causal-window:256", "bigbird:3:1:2", "bigbird:256:2:3")
_SHOWN = ("full", "causal", "block:128", "star:4", "fixed:181 & causal", "bigbird:3:0:2")


def main() -> list[Ratio]:
    """Windows and BigBird against the bar; others for the eye, the last without any hub."""
    print(f"Graphs of {_TOKENS:,} tokens")
    slowest = max(_seconds(name) for name in _HELD)
    for name in _SHOWN:
        _seconds(name)
    return [Ratio(f"graph facts, slowest of {len(_HELD)} / {_BAR:g} s", slowest / _BAR, 1.0)]


def _seconds(name: str) -> float:
    start = time.perf_counter()
    facts = graph_facts(name, _TOKENS)
    seconds = time.perf_counter() - start
    print(f"  {name:<20} {seconds:6.2f} s   {facts}")
    return seconds


if __name__ == "__main__":
    main()
