"""States that wait to be worked on together, and what is left of them afterwards."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from rankscope.metrics._estimates import EstimatedSpectra, Evidence, Moments, weigh
from rankscope.metrics._golub_kahan import Bidiagonal, Starts
from rankscope.metrics._mean_split import (
    MeanSplit,
    PerMatrix,
    in_pieces,
    room_for,
    split_mean,
    sum_of_fourth_powers,
)
from rankscope.shapes import Hidden, TokenMask

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
        self.parts: list[MeanSplit] = []
        self._fourths: list[PerMatrix] = []

    @property
    def full(self) -> bool:
        """Whether no other state fits."""
        return len(self.places) >= self._room

    def add(self, place: Place, x: Hidden, mask: TokenMask | None, *, fourth: bool) -> None:
        """Copy a state in, without its mean."""
        at = len(self.places) * place.count
        part = split_mean(x, mask, tuple(term[at : at + place.count] for term in self.terms))
        nothing = torch.full_like(part.energy, torch.nan)
        self._fourths.append(sum_of_fourth_powers(part) if fourth else nothing)
        self.places.append(place)
        self.parts.append(part)

    def matrix(self) -> MeanSplit:
        """All that is in it, as one batch."""
        return MeanSplit(
            tuple(term[: sum(place.count for place in self.places)] for term in self.terms),
            *(
                torch.cat([getattr(part, name) for part in self.parts])
                for name in ("e", "c", "s", "energy", "noise")
            ),
        )

    def moments(self) -> Moments:
        """What is known of it without probes."""
        energy, noise = (
            torch.cat([getattr(part, name) for part in self.parts]) for name in ("energy", "noise")
        )
        return Moments(energy, noise, torch.cat(self._fourths))

    def clear(self) -> None:
        """Make room."""
        self.places, self.parts, self._fourths = [], [], []


def on_host(batches: list[Batch]) -> None:
    """Weigh what was found, bring it to the host in one piece per device, and hand it out."""
    weighed: dict[torch.device, list[tuple[Batch, Evidence]]] = {}
    for alike in _grouped(batches):
        found = Bidiagonal(*map(torch.cat, zip(*(each.found for each in alike), strict=True)))
        moments = Moments(*map(torch.cat, zip(*(each.moments for each in alike), strict=True)))
        evidence = weigh(found, alike[0].starts, moments)
        sizes = [sum(place.count for place in each.places) for each in alike]
        parts = zip(*(each.split(sizes) for each in evidence), strict=True)
        device = found.alpha.device
        weighed.setdefault(device, []).extend(
            (each, Evidence(*part)) for each, part in zip(alike, parts, strict=True)
        )
    for pairs in weighed.values():
        flat = torch.cat([each.flatten() for _, known in pairs for each in known]).cpu()
        for batch, known in pairs:
            sizes = [each.numel() for each in known]
            here, flat = flat[: sum(sizes)], flat[sum(sizes) :]
            shaped = zip(here.split(sizes), known, strict=True)
            _hand_out(batch, Evidence(*(part.reshape(like.shape) for part, like in shaped)))


def _grouped(batches: list[Batch]) -> list[list[Batch]]:
    """Batches that can be weighed together: same starts, same number of steps."""
    groups: dict[int, list[Batch]] = {}
    for each in batches:
        groups.setdefault(id(each.starts), []).append(each)
    return list(groups.values())


def _hand_out(batch: Batch, known: Evidence) -> None:
    at = 0
    probes = batch.starts.probes.shape[0] if batch.starts.by_chance else 0
    for place in batch.places:
        own = Evidence(*(each[at : at + place.count] for each in known))
        place.spectra = EstimatedSpectra(own, place.shape, probes)
        at += place.count
