"""The kernels for hidden states in Triton's interpreter beside float64: prints what they find.

Run by ``test_fused.py`` in a process of its own, since Triton reads the variable once. Programs are
made small, so that a few tokens are several chunks, blocks and groups.
"""

import json
import os
import warnings

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is loaded

import torch

from rankscope.core.metrics import (
    GatheredPeaks,
    GatheredStatistics,
    StateStatistics,
    _fused,
    _statistics,
    state_statistics,
)

SMALL = {"_LINE_BYTES": 16, "_ROWS": 2, "_LONGEST_CHUNK": 4, "_PROGRAMS": 1, "_CHUNKS_AT_ONCE": 2}
SMALL |= {"_SHORTEST_CHUNK": 2}
REAL = {name: getattr(_fused, name) for name in SMALL} | {"_PROGRAMS": 1}
GENERATOR = torch.Generator().manual_seed(0)
NAMES = list(StateStatistics.__dataclass_fields__)[:-3]  # those of samples


def share_out(sizes: dict[str, int]) -> None:
    """Have programs work on parts of these sizes."""
    vars(_fused).update(sizes)
    _fused.plan_for.cache_clear()


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


def padding(*rows: str) -> torch.Tensor:
    return torch.tensor([[each == "1" for each in row] for row in rows])


def exact(x: torch.Tensor, mask: torch.Tensor | None) -> list[list[float]]:
    """Every figure of every sample in float64, by its definition, tokens without the padding."""
    found = []
    for sample in range(len(x)):
        t = x[sample] if mask is None else x[sample][mask[sample]]
        t = t.double()
        rest, length = t - t.mean(0), t.norm(dim=1)
        units = t[length > 0] / length[length > 0, None]
        found.append([
            len(t), t.abs().sum(0).max(), t.abs().sum(1).max(), t.norm(),
            rest.abs().sum(0).max(), rest.abs().sum(1).max(), rest.norm(),
            units.sum(0).square().sum(), (length > 0).sum(), -1,
        ])  # fmt: skip
    return [[float(each) for each in row] for row in zip(*found, strict=True)]


def apart(found: StateStatistics, x: torch.Tensor, mask: torch.Tensor | None) -> float:
    """The largest error: of the rest in units of the state, of squares in those of their most."""
    worst = 0.0
    known = dict(zip(NAMES, torch.tensor(exact(x, mask), dtype=torch.float64), strict=True))
    for name, truth in known.items():
        unit = known["tokens"] ** 2 if name == "unit_square" else truth
        unit = known[name.removeprefix("rest_")] if name.startswith("rest") else unit
        error = (getattr(found, name) - truth).abs() / torch.where(unit == 0, 1.0, unit.abs())
        # NaN is far off, and what is counted must be exact.
        counts = name in ("tokens", "nonzero", "broken")
        worst = max(worst, *(e if e < 1 and not (counts and e) else 1e9 for e in error.tolist()))
    return worst


def gather(*states: tuple[torch.Tensor, torch.Tensor | None], expected: int = 1) -> StateStatistics:
    gathered = GatheredStatistics(expected)
    for x, mask in states:
        gathered.add(x, mask)
    assert not any(plain is not None for plain in gathered._plain), (
        "a state did not go through the kernels"
    )
    return gathered.finish()


def differ(x: torch.Tensor, mask: torch.Tensor | None = None) -> float:
    return apart(gather((x, mask)).only(0), x, mask)


X = draw(2, 11, 7)  # three chunks and blocks, two groups, the last of each not full
HOLES = padding("01001100011", "00000000010")
FEW = draw(2, 5, 5)  # two chunks and groups: the fewest programs in which parts are put together
FEW_LEFT = padding("00111", "11111")
FEW_HOLES = padding("01001", "00010")


def shapes() -> dict[str, float]:
    cases = [(1, 1, 1), (2, 1, 5), (1, 3, 1), (1, 4, 4), (1, 8, 8), (3, 7, 3), (1, 19, 3)]
    return {f"{shape}": differ(draw(*shape)) for shape in cases}


def real_sizes() -> dict[str, float]:
    """Programs as large as on a GPU, also of tokens that are all but alike."""
    share_out(REAL)
    near = torch.ones(1, 128, 128)
    near[..., 5] = 1e-10
    near[0, 3, 5] += 1e-13
    rest = near[0].double() - near[0].double().mean(0)
    found = state_statistics(near).rest_fro / rest.norm() - 1
    far = {"several chunks": differ(draw(1, 150, 130)), "nearly alike": float(found.abs())}
    share_out(SMALL)
    return far


def masks() -> dict[str, float]:
    broken = FEW.clone()
    broken[~FEW_HOLES] = torch.nan
    broken[0, 0] = torch.inf
    return {
        "none": differ(X),
        "left": differ(FEW, FEW_LEFT),
        "right": differ(FEW, FEW_LEFT.flip(-1)),
        "holes, one token left": differ(X, HOLES),
        "NaN in the padding": differ(broken, FEW_HOLES),
        "whole": differ(draw(1, 8, 4), torch.ones(1, 8, dtype=torch.bool)),
        "expanded": differ(FEW, FEW_LEFT[:1].expand(2, 5)),
    }


def strides() -> dict[str, float]:
    wide = draw(3, 12, 15)
    return {
        "token first": differ(wide.transpose(0, 1)[:2, :, :9]),
        "features first": differ(wide.transpose(1, 2)[:1, :7, :5]),
        "a step": differ(wide[:2, 1::3, 2::3]),
        "a step and a mask": differ(wide[:2, ::2, 1::4], padding("001111", "111110")),
        "expanded samples": differ(wide[:1, :5, :5].expand(2, 5, 5)),
        "expanded features": differ(wide[:1, :5, :1].expand(1, 5, 5)),
    }


def kinds() -> dict[str, float]:
    x = 3 * draw(1, 6, 10)  # half precision has twice as many columns in a group
    mask = padding("001101")
    return {str(kind): differ(x.to(kind), mask) for kind in _fused.FUSED_DTYPES}


def sizes() -> dict[str, float]:
    small = draw(1, 6, 6)
    powers = (1e-30, 1e-20, 1e-6, 1e8, 1e20, 1e30)
    found = {f"{size:g}": differ(size * small[:, :4]) for size in powers}
    giant, column, zeros, offset = (small.clone() for _ in range(4))
    giant[0, 4] *= 1e6
    column[..., 3] *= 1e8
    zeros[0, [0, 4]] = 0.0
    first = small.clone()
    first[0, 0] *= 1e6
    return found | {
        "one giant token": differ(giant),
        "the first token a giant": differ(first),
        "one column": differ(column),
        "zero tokens": differ(zeros),
        "zero": differ(torch.zeros(1, 5, 3)),
        "a common offset": differ(offset + 1000),
        "a zero group": differ(torch.cat((torch.zeros(1, 6, 4), small), -1)),
    }


def equal() -> dict[str, list[float]]:
    """What is left of equal tokens, whatever their number and values; and their cosine."""
    tokens = 0.1 + draw(2, 1, 5).expand(2, 5, 5)
    found = gather((tokens, None), (tokens.contiguous(), FEW_LEFT))
    left = torch.stack([found.rest_one, found.rest_inf, found.rest_fro]).abs().amax((0, 2))
    return {"rest": left.tolist(), "cosine": found.mean_cosine().amin(-1).tolist()}


def faults() -> dict[str, str]:
    """Where an entry is no number: the words name the sample and the token."""
    found = {}
    for value, token in ((torch.nan, 0), (torch.nan, 6), (torch.inf, 0), (-torch.inf, 6)):
        x = draw(2, 8, 5)
        x[1, token, 4] = value
        x[1, 7] = torch.nan
        found[f"{value} at {token}"] = gather((x, None)).only(0).fault(torch.float32)
    found["sound"] = gather((X, None)).only(0).fault(torch.float32)
    found["sums"] = gather((torch.full((1, 5, 3), 1e38), None)).only(0).fault(torch.float32)
    return found


def doubts() -> dict[str, str]:
    far, less, alike = draw(1, 4, 3), draw(1, 4, 3), torch.ones(1, 4, 3)
    far[0, 3] *= 1e20
    less[0, 3] *= 1e-20
    alike[0, :, 2] = torch.arange(4) * 1e-25
    cases = {"larger": far, "smaller": less, "alike": alike}
    found = {}
    for name, x in cases.items():
        both = gather((draw(1, 4, 3), None), (x, None), expected=2)
        assert both.only(0).fault(torch.float32) == ""
        found[name] = both.only(1).fault(torch.float32)
    return found


def several() -> list[float]:
    """More states than expected, of several shapes, dtypes and masks."""
    shapes = [(2, 3, 6), (2, 3, 6), (2, 7, 3), (2, 3, 6), (2, 3, 6), (2, 3, 6), (2, 7, 3)]
    states = [(draw(*shape), None) for shape in shapes]
    states[1] = (states[1][0], padding("011", "001"))
    states[3] = (states[3][0], padding("101", "111"))
    states[4] = (states[4][0].bfloat16(), states[1][1])
    together = gather(*states, expected=3)
    return [apart(together.only(n), x, mask) for n, (x, mask) in enumerate(states)]


def repeated() -> bool:
    once, again = (gather((FEW, FEW_LEFT)) for _ in range(2))
    return all(torch.equal(getattr(once, name), getattr(again, name)) for name in NAMES)


def sides_apart(found: StateStatistics, x: torch.Tensor, mask: torch.Tensor) -> float:
    """How far center, lengths and sum of unit rows are off."""
    kept = torch.where(mask.unsqueeze(-1), x.double(), 0.0)
    lengths = kept.norm(dim=-1)
    units = torch.where(lengths[..., None] > 0, kept / lengths[..., None], 0.0)
    truth = (kept.sum(-2) / mask.sum(-1, keepdim=True), lengths, units.sum(-2))
    mine = (found.center, found.lengths, found.unit_sum)
    return max(float((a - b).abs().max()) for a, b in zip(mine, truth, strict=True))


def public() -> dict[str, float]:
    """Through the public function: leading axes, one sample, and both paths in one gathering."""
    many, mask = draw(2, 1, 6, 5), padding("011101")
    found = state_statistics(many, token_mask=mask)
    flat = StateStatistics(*(getattr(found, name).flatten() for name in NAMES))
    alone = state_statistics(FEW[0])
    alone = StateStatistics(*(getattr(alone, name).unsqueeze(0) for name in NAMES))
    gathered = GatheredStatistics(2)
    for x in (FEW, FEW.double()):
        gathered.add(x, FEW_LEFT)
    both = gathered.finish()
    return {
        "leading axes": apart(flat, many.flatten(0, 1), mask.repeat(2, 1)),
        "one sample": apart(alone, FEW[:1], None),
        "sides": sides_apart(found, many, mask),
        "float64 beside float32": max(apart(both.only(n), FEW, FEW_LEFT) for n in (0, 1)),
        "paths": float((both.rest_fro[0] / both.rest_fro[1] - 1).abs().max()),
    }


def center() -> float:
    gathered = GatheredStatistics(1)
    mean = gathered.add(X, HOLES)
    truth = torch.stack([X[n][HOLES[n]].double().mean(0) for n in range(2)])
    return float((mean - truth).abs().max())


def gathered() -> dict[str, bool]:
    """The largest entries of queries, laid out as models lay them out."""
    vars(_statistics)["can_fuse"] = lambda _: True
    x = draw(2, 5, 3, 6).transpose(1, 2)  # batch head token width
    broken = x.clone()
    broken[1, 2, 4, 5] = torch.nan
    few = draw(2, 1, 40, 6)  # keys of fewer heads, and more of them than a program reads
    few[1, 0, 39, 5] = -9.0
    pairs = [(x, few), (broken, x), (x.half(), few.half()), (few, x[..., ::2]), (x, few)]
    vars(_statistics)["_CALLS"] = 2  # so that several blocks are needed
    peaks = GatheredPeaks()
    for query, key in pairs:
        peaks.add(query, key)
    largest = [[float(each.abs().max()) for each in pair] for pair in pairs]
    largest[1][0] = torch.inf
    return {
        "largest": peaks.finish() == largest,
    }


PARTS = (
    shapes,
    real_sizes,
    masks,
    strides,
    kinds,
    sizes,
    equal,
    several,
    repeated,
    public,
    center,
    gathered,
)
OVERFLOWING = (faults, doubts)  # NumPy, which computes here, warns of what is tried there
share_out(SMALL)
found = {part.__name__: part() for part in PARTS}
warnings.simplefilter("ignore", RuntimeWarning)
found |= {part.__name__: part() for part in OVERFLOWING}
print(json.dumps(found))
