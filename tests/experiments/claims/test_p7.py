"""P7: the forecast against hand computations, the verdict in worlds made for it, a small run."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom, entropy, spearmanr

from rankscope import Spec, figures, predict, tables
from rankscope.errors import InputError
from rankscope.experiments.claims import _p7_figures, _p7_forecast, _p7_table, _p7_training, p7
from rankscope.experiments.claims._p7_figures import ANGLE, DISTANCE, GRADIENT, STARTS
from rankscope.experiments.learning import SORTING, Plan, learn, lesson
from rankscope.experiments.progress import silent
from rankscope.network import Init, Network
from rankscope.streams import stream
from rankscope.training import Recipe, Sorting

TINY = p7.Config(
    depths=(1, 2),
    scales=(1.0, 4.0),
    seeds=2,
    plan=Plan(1, 8, Recipe(12, 4, warmup=2), 8, 6, 0.9, tokens=3),
    rates=(1e-3, 1e-2),
    draws=2,
    sequences=1,
)
MAP = p7.Config(depths=(4, 8))


def world(loss_of, noise=0.01, config=MAP):
    """A table in which exponents are drawn at random and ``loss_of`` them decides."""
    draws = np.random.default_rng(0)
    given, losses = [], []
    for _ in config.designs:
        drawn = {
            f"{name}, {start}": value
            for start in STARTS
            for name, value in zip((ANGLE, GRADIENT), draws.uniform(-1, 1, 2), strict=True)
        }
        drawn |= {
            f"{DISTANCE}, {start}": math.hypot(drawn[f"{ANGLE}, {start}"], drawn[f"{GRADIENT}, {start}"])
            for start in STARTS
        }
        given.append(drawn)
        losses.append([loss_of(drawn, draws) + noise * draws.normal() for _ in range(3)])
    table = tables.from_rows(p7.COLUMNS, p7.loss_rows(config.designs, given, losses))
    scores = tables.from_rows(p7.COLUMNS, p7.score_rows(table, config.neighbours))
    return tables.stack([table, scores])


def by_distance(start):
    return lambda drawn, _: drawn[f"{DISTANCE}, {start}"]


def test_where_exponents_decide_they_forecast():
    both_starts = world(lambda drawn, _: sum(drawn[f"{DISTANCE}, {start}"] for start in STARTS[:1]))
    judgement, beyond, sentences = p7.judge(MAP, both_starts)
    assert judgement.verdict == beyond.verdict == "depends"
    assert str(beyond) == "depends on the case: nearly alike bears it out, own tokens does not"
    assert "best single figure: exponents from zero, nearly alike (0.9" in sentences[-3]
    shared = p7.Config(depths=(4,), enough=-100.0)
    assert str(p7.judge(shared, world(by_distance(STARTS[0]), config=shared))[0]) == "holds"
