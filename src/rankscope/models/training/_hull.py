"""Convex hull: which points of a set are corners of its hull (Dong et al. 2021, figure 4)."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from rankscope.arguments import Count, Range, checked
from rankscope.models.training._task import Examples
from rankscope.streams import stream


@checked
@dataclass(frozen=True)
class Hull:
    """Points drawn evenly from the square between −1 and 1, labelled 1 on the hull, else 0."""

    points: Annotated[int, Range(3, 1_000_000)] = 10

    def draw(self, count: Count, seed: int, purpose: str) -> Examples:
        """So many sets; each purpose, such as training, has its own."""
        generator = stream(seed, "hull", purpose)
        points = 2 * torch.rand(count, self.points, 2, generator=generator, dtype=torch.float64) - 1
        return Examples(points.float(), on_hull(points))


def on_hull(points: Tensor) -> Tensor:
    """1 for the corners of each set's convex hull, 0 for the points inside."""
    from scipy.spatial import ConvexHull  # type: ignore[import-untyped]

    labels = torch.zeros(points.shape[:-1], dtype=torch.long)
    for own, each in zip(labels, points.numpy(), strict=True):
        own[torch.from_numpy(ConvexHull(each).vertices.astype(np.int64))] = 1
    return labels
