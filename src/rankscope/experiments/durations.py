"""How long claims and studies took at their usual sizes, in seconds on two cores of a laptop.

Those of claims are from ``docs/reproduced.md``. W5 needs trained models to do anything.
"""

from typing import Final

SECONDS: Final = {
    "D1": 1,
    "D2": 16,
    "D3": 4,
    "D4": 19,
    "D5": 108,
    "D6": 244,
    "D7": 294,
    "D8": 1,
    "D9": 5,
    "D10": 32,
    "D11": 3,
    "N1": 8,
    "N2": 22,
    "W1": 25,
    "W2": 297,
    "W3": 95,
    "W4": 9,
    "W5": 1,
    "W6": 91,
    "P1": 21,
    "P2": 17,
    "P3": 22,
    "P4": 14,
    "P5": 3,
    "P6": 10,
    "P7": 72,
    "widths": 10,
    "patterns": 16,
    "layernorm": 250,
    "phases": 120,
    "wu": 50,
}
