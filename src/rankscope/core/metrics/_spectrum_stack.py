"""States that wait to be worked on together, and what is left of them afterwards."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from rankscope.core.metrics._centring import Moved, Rows, assemble, move_mean
from rankscope.core.metrics._estimates import EstimatedSpectra
from rankscope.core.metrics._evidence import Evidence, Moments, weigh
from rankscope.core.metrics._golub_kahan import Bidiagonal, Starts
from rankscope.core.metrics._mean_split import MeanSplit, in_pieces, room_for
from rankscope.core.shapes import Hidden, TokenMask

_MOST_STATES = 64


@dataclass
class Place:
    """One state among those fed: its leading axes, and what came of it."""

    shape: tuple[int, ...]
    count: int
    spectra: EstimatedSpectra | None = None

    def result(self) -> EstimatedSpectra:
        """What came of it."""
        assert self.spectra is not None
        return self.spectra


class Batch(NamedTuple):
    """What was found of several states, still on their device."""

    places: list[Place]
    found: Bidiagonal
    starts: Starts
    moments: Moments


class Stack:
    """States of one shape, dtype and device, in room for as many as fit into some bytes."""

    def __init__(self, like: Hidden, limit: int) -> None:
        one = room_for(like[:0], 1, pieced=in_pieces(like))
        size = sum(term.element_size() for term in one) * like.numel()
        self._room = max(1, min(_MOST_STATES, limit // max(size, 1)))
        self.terms = room_for(like, self._room, pieced=in_pieces(like))
        self.places: list[Place] = []
        self._parts: list[Moved] = []

    @property
    def full(self) -> bool:
        """Whether no other state fits."""
        return len(self.places) >= self._room

    def add(self, place: Place, x: Hidden, mask: TokenMask | None, center: Rows | None) -> None:
        """Copy a state in, without its mean."""
        at = len(self.places) * place.count
        into = tuple(term[at : at + place.count] for term in self.terms)
        self._parts.append(move_mean(x, mask, center, into))
        self.places.append(place)

    def matrix(self) -> MeanSplit:
        """All that is in it, as one batch."""
        count = sum(place.count for place in self.places)
        moved = Moved(*(torch.cat(each) for each in zip(*self._parts, strict=True)))
        return assemble(tuple(term[:count] for term in self.terms), moved)

    def clear(self) -> None:
        """Make room."""
        self.places, self._parts = [], []


def hand_out(batches: list[Batch]) -> None:
    """Bring what was found to the host, in one piece for each device, and weigh it there."""
    for alike in _grouped(_on_host(batches)):
        found = Bidiagonal(*map(torch.cat, zip(*(each.found for each in alike), strict=True)))
        moments = Moments(*map(torch.cat, zip(*(each.moments for each in alike), strict=True)))
        starts = alike[0].starts
        chance = starts.probes.shape[0] if starts.by_chance else 0
        known = weigh(found, moments, chance)
        places = [place for each in alike for place in each.places]
        parts = zip(*(each.split([p.count for p in places]) for each in known), strict=True)
        for place, part in zip(places, parts, strict=True):
            place.spectra = EstimatedSpectra(Evidence(*part), place.shape, chance)


def _on_host(batches: list[Batch]) -> list[Batch]:
    """The same numbers in float64 on the CPU, after one transfer from each device."""
    devices: dict[torch.device, list[Batch]] = {}
    for each in batches:
        devices.setdefault(each.found.alpha.device, []).append(each)
    arrived = []
    for together in devices.values():
        tensors = [one for each in together for one in (*each.found, *each.moments)]
        flat = torch.cat([one.flatten() for one in tensors]).cpu().double()
        pieces = flat.split([one.numel() for one in tensors])
        here = iter([piece.reshape(one.shape) for piece, one in zip(pieces, tensors, strict=True)])
        for each in together:
            found = Bidiagonal(*(next(here) for _ in each.found))
            moments = Moments(*(next(here) for _ in each.moments))
            arrived.append(each._replace(found=found, moments=moments))
    return arrived


def _grouped(batches: list[Batch]) -> list[list[Batch]]:
    """Batches that can be weighed together: same starts, same number of steps."""
    groups: dict[int, list[Batch]] = {}
    for each in batches:
        groups.setdefault(id(each.starts), []).append(each)
    return list(groups.values())
