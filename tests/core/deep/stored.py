"""Answers of mpmath that take long to find, kept in ``golden/answers.json``.

An answer is found by a digest of all of its question (the spec, every weight, the input, what is
asked of it), so that none is ever taken for the answer to another one. ``make campaign`` asks all
questions again and compares; after a change of the tests, which then ask for answers that are not
there, ``python tests/core/deep/campaign.py --count 0 --write`` writes the file anew.

Weights are drawn by torch, whose random numbers may differ in the last digit on another kind of
processor. There (``_SAME_NUMBERS`` is false) no question is found, and mpmath is asked instead.
"""

import atexit
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankscope.core.network import Network

from . import oracle
from .oracle import Measure

FILE = Path(__file__).parent / "golden" / "answers.json"
DERIVE = os.environ.get("RANKSCOPE_GOLDEN")
"""A file to write all answers to that are asked for; then none is looked up."""


def digest(*parts: object) -> str:
    """Sixteen hex digits; networks and tensors count with every bit."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, Network):
            # Without the scale of embeddings: what is read is given.
            found.update(repr(replace(part.spec, embedding_scale=None)).encode())
            held = dict(part.state_dict())
            for place, module in part.blocks.named_modules():  # constants, which are no parameters
                constants = {n: v for n, v in vars(module).items() if not n.startswith("_")}
                held |= {f"{place}.{n}": v for n, v in constants.items() if n != "training"}
            for name, value in sorted(held.items()):
                plain = value if isinstance(value, int | float | tuple) else name
                found.update(digest(name, value if isinstance(value, Tensor) else plain).encode())
        elif isinstance(part, Tensor):
            found.update(
                repr(tuple(part.shape)).encode() + part.detach().double().numpy().tobytes()
            )
        else:
            found.update(repr(part).encode())
    return found.hexdigest()[:16]


def numbers_drawn() -> str:
    """Which random numbers torch draws here."""
    generator = torch.Generator().manual_seed(0)
    return digest(torch.randn(1000, generator=generator, dtype=torch.float64))


_KEPT = json.loads(FILE.read_text()) if FILE.exists() else {"numbers": "", "answers": {}}
_SAME_NUMBERS = _KEPT["numbers"] == numbers_drawn()
_DERIVED: dict[str, Any] = {}


def answer(question: Sequence[object], compute: Callable[[], Any]) -> Any:
    """The answer to a question, as JSON holds it: looked up, or computed where it must be."""
    key = digest(*question)
    if DERIVE is None and key in _KEPT["answers"]:
        return _KEPT["answers"][key]["answer"]
    if DERIVE is None and _SAME_NUMBERS:
        raise LookupError(
            f"{FILE.name} has no answer to this question; if the question is right, write it: "
            "python tests/core/deep/campaign.py --count 0 --write"
        )
    found = compute()
    asked_by = os.environ.get("PYTEST_CURRENT_TEST", "").split(" ")[0].rpartition("/")[2]
    _DERIVED[key] = {"asked by": asked_by, "answer": found}
    return found


@atexit.register
def _write() -> None:
    if DERIVE is not None and _DERIVED:
        by_test = sorted(_DERIVED.items(), key=lambda one: (one[1]["asked by"], one[0]))
        text = {"numbers": numbers_drawn(), "answers": dict(by_test)}
        Path(DERIVE).write_text(json.dumps(text, indent=0) + "\n")


def residuals(
    network: Network, x: Tensor, token_mask: Tensor | None, measures: Sequence[Measure], most: int
) -> dict[Measure, Tensor]:
    """``oracle.settled``, stored."""

    def compute() -> list[list[list[float]]]:
        settled = oracle.settled(network, x, token_mask, measures, most=most)
        return [settled[measure].tolist() for measure in measures]

    kept = answer(("residuals", network, x, token_mask, *measures), compute)
    rows = [torch.tensor(one, dtype=torch.float64) for one in kept]
    return dict(zip(measures, rows, strict=True))
