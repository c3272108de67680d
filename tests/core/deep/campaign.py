"""Hard networks in scaled arithmetic and in mpmath: what is wrong, and whether it is doubted.

``make campaign`` runs 3,000 of them; ``python tests/core/deep/campaign.py --count 100 --seed 1``
others. Then it asks mpmath again for all answers that the tests keep (``stored.py``).
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # the package the tests are, also when run as a script
    sys.path.insert(0, str(Path(__file__).parents[1]))
    __package__ = "deep"

import torch
from mpmath import mp, mpf

from rankscope.core.deep import deep_trace
from rankscope.errors import RankscopeError

from . import stored
from .hard_networks import Case, draw
from .oracle import _SPARE, _centered, matrix_norm, plain_states

Key = tuple[int, int, str]

WRONG = 1e-6
"""In log10 of the residual, relative where that is above 1."""
FALSE_ALARMS = 0.02
METRICS = ("log10_residual", "log10_relative_residual")
VERDICTS = ("right", "unsettled", "flagged", "undecided", "false alarm", "silent", "refused")
_AGREED = 1e-12
_MOST_DIGITS = {"forty norms": 400, "huge states": 240}
"""Where mpmath would take too long for more."""


@dataclass(frozen=True)
class Judged:
    """One network: ``silent`` and ``flagged`` are its largest errors without and with a doubt.

    It is ``unknown`` whether scaled arithmetic is right to say that tokens are exactly equal where
    mpmath finds them equal in all its digits: what is left may be far smaller still. Then a network
    without a doubt is ``unsettled``, and one with a doubt ``undecided``.
    """

    number: int
    kind: str
    silent: float = 0.0
    flagged: float = 0.0
    doubted: bool = False
    unknown: bool = False
    refused: str = ""
    where: str = ""

    @property
    def verdict(self) -> str:
        """Which column of the table it counts in."""
        if self.refused:
            return "refused"
        if self.silent > WRONG:
            return "silent"
        if not self.doubted:
            return "unsettled" if self.unknown else "right"
        if self.flagged > WRONG:
            return "flagged"
        return "undecided" if self.unknown else "false alarm"


def judge(seed: int, number: int, *, keep: bool = False) -> Judged:
    """Run one network both ways; tests ``keep`` what mpmath says."""
    torch.set_num_threads(1)
    case = draw(seed, number)
    try:
        trace = deep_trace(
            case.network,
            case.x,
            norm=case.norm,
            center=case.center,
            token_mask=case.token_mask,
            measured=case.measured,
        )
    except RankscopeError as error:
        return Judged(number, case.kind, refused=str(error))
    columns = trace.columns
    doubts = columns.get("doubt", [False] * len(columns["value"]))
    rows = zip(*(columns[c] for c in ("layer", "sample", "metric", "value")), doubts, strict=True)
    kept = [row for row in rows if row[2] in METRICS]
    ask = _kept_logarithms if keep else exact_logarithms
    truth = ask(case, {row[:3]: row[3] for row in kept})
    errors = {row: off_by(row[3], *truth[row[:3]]) for row in kept}
    unknown = any(math.isnan(e) for e in errors.values())
    errors = {row: e for row, e in errors.items() if not math.isnan(e)}
    silent = {row: e for row, e in errors.items() if not row[4]}
    worst = max(silent, key=silent.__getitem__, default=None)
    where = ""
    if worst is not None and silent[worst] > WRONG:
        true, floor = truth[worst[:3]]
        where = f"layer {worst[0]} {worst[2]} {worst[3]:.9g}, truly {true:.9g} (floor {floor:.4g})"
    return Judged(
        number,
        case.kind,
        max(silent.values(), default=0.0),
        max((e for row, e in errors.items() if row[4]), default=0.0),
        any(doubts),
        unknown,
        where=where,
    )


def off_by(got: float, true: float, floor: float) -> float:
    """How far a logarithm is off, where ``true`` is NaN if it is below ``floor`` and not known.

    NaN where nobody knows: tokens are said to be equal, and are so to all of mpmath's digits.
    """
    if math.isnan(true):
        if got == -math.inf:
            return math.nan
        return 0.0 if got <= floor else math.inf
    if got == true:
        return 0.0
    off = abs(got - true) / max(1.0, abs(true))
    return math.inf if math.isnan(off) else off


def exact_logarithms(case: Case, got: dict[Key, float]) -> dict[Key, tuple[float, float]]:
    """By layer, sample and metric the logarithm, NaN if unknown, and what it is below for sure.

    The digits are doubled until two runs agree. What scaled arithmetic says is only a hint where
    to start: what it misses shows as disagreement.
    """
    most = _MOST_DIGITS.get(case.kind, 900)
    smallest = min((v for v in got.values() if math.isfinite(v)), default=0.0)
    digits = int(max(60, min(most / 2, 40 - 1.1 * smallest)))
    before = _run(case, digits)
    while True:
        digits *= 2
        after = _run(case, digits)
        settled = {key: _settle(before[key], after[key]) for key in after}
        if digits >= most or not any(math.isnan(true) for true, _ in settled.values()):
            return settled
        before = after


def _kept_logarithms(case: Case, got: dict[Key, float]) -> dict[Key, tuple[float, float]]:
    """The same, stored."""
    asked = (case.network, case.x, case.token_mask, case.measured, case.norm, case.center)
    rows = stored.answer(
        ("logarithms", *asked),
        lambda: [[*key, *value] for key, value in exact_logarithms(case, got).items()],
    )
    return {(layer, sample, metric): (true, floor) for layer, sample, metric, true, floor in rows}


def _settle(before: tuple[mpf, mpf], after: tuple[mpf, mpf]) -> tuple[float, float]:
    """A logarithm on which two precisions agree; else NaN and what both say it is not above."""
    (low, low_floor), (high, high_floor) = before, after
    if low > low_floor and high > high_floor:
        agreed = abs(low - high) <= _AGREED * max(1, abs(high))
        return (float(high), -math.inf) if agreed else (math.nan, math.inf)
    return math.nan, float(high_floor if high <= high_floor else low_floor)


def _run(case: Case, digits: int) -> dict[Key, tuple[mpf, mpf]]:
    """Logarithms at some precision, and those above which they stand out from its rounding."""
    states = plain_states(case.network, case.x, case.token_mask, digits)
    found = {}
    with mp.workdps(digits):
        for layer, state in enumerate(states):
            for sample, rows in enumerate(state.samples):
                real = [row for row in rows if not mp.isnan(row[0])]
                counted = real
                if case.measured is not None:
                    counted = [rows[at] for at in case.measured[sample].nonzero().flatten()]
                size, whole, largest = (
                    mp.log10(norm) if norm else -mp.inf
                    for norm in (
                        matrix_norm(_centered(counted, case.center), case.norm),
                        matrix_norm(counted, case.norm),
                        matrix_norm(real, case.norm),
                    )
                )
                # The tokens that do not count may be far larger, and leave their rounding.
                floor = largest + _SPARE - digits
                relative = size if mp.isinf(size) else size - whole
                found[layer, sample, METRICS[0]] = size, floor
                found[layer, sample, METRICS[1]] = relative, floor - whole
    return found


def report(judged: Iterable[Judged], count: int) -> bool:
    """Print the counts by kind and every silent error; whether the campaign's bars are met."""
    by_kind: dict[str, Counter[str]] = defaultdict(Counter)
    silent = []
    for number, one in enumerate(judged, start=1):
        by_kind[one.kind][one.verdict] += 1
        if one.verdict == "silent":
            silent.append(one)
        if sys.stderr.isatty() or number % 500 == 0:
            print(f"\r{number} of {count}", end="", file=sys.stderr, flush=True)
    print(f"\n{'kind':<22}" + "".join(f"{name:>13}" for name in VERDICTS))
    total: Counter[str] = sum(by_kind.values(), Counter())
    for kind, counts in [*by_kind.items(), ("all", total)]:
        print(f"{kind:<22}" + "".join(f"{counts[name]:>13,}" for name in VERDICTS))
    for one in silent:
        print(f"silent: number {one.number}, {one.kind}, off by {one.silent:.3g}: {one.where}")
    compared = total.total() - total["refused"]
    alarms = total["false alarm"] / max(compared, 1)
    at_most = (total["false alarm"] + total["undecided"]) / max(compared, 1)
    print(
        f"{compared:,} compared; {len(silent)} silent errors; {alarms:.2%} false alarms, "
        f"at most {at_most:.2%} if all undecided doubts are"
    )
    return not silent and alarms < FALSE_ALARMS


def main() -> int:
    """Run the campaign; the exit code says whether its bars are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="keep the answers found now")
    given = parser.parse_args()
    start = time.perf_counter()
    with ProcessPoolExecutor(given.processes) as pool:
        numbers = range(given.first, given.first + given.count)
        judged = pool.map(partial(judge, given.seed), numbers, chunksize=4)
        met = report(judged, given.count)
    met = derive_again(write=given.write) and met
    print(f"{time.perf_counter() - start:.0f} s")
    return 0 if met else 1


def derive_again(*, write: bool) -> bool:
    """Ask mpmath for every answer the tests keep; whether those kept are right and all are used."""
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        derived = Path(folder, "answers.json")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(here)]
        passed = subprocess.run(
            command, env={**os.environ, "RANKSCOPE_GOLDEN": str(derived)}, check=False
        )
        new, old = (
            json.loads(path.read_text())["answers"] if path.exists() else {}
            for path in (derived, stored.FILE)
        )
        other = [key for key in new.keys() & old.keys() if repr(new[key]) != repr(old[key])]
        print(
            f"{len(new)} answers derived: {len(new.keys() & old.keys()) - len(other)} as kept, "
            f"{len(other)} others than kept, {len(new.keys() - old.keys())} new; "
            f"{len(old.keys() - new.keys())} kept that nobody asks for"
        )
        if write and passed.returncode == 0:
            stored.FILE.write_text(derived.read_text())
    return passed.returncode == 0 and (write or new.keys() == old.keys()) and not other


if __name__ == "__main__":
    sys.exit(main())
