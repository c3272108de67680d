"""Histories of runs as a monitor would write them, for tests of what is shown."""

import math
import random

from rankscope.monitor._board import AlarmBoard
from rankscope.monitor._history import History, StepRecord
from rankscope.monitor._names import LOSS, MONITORED, OVERHEAD

STARTS = {
    "rank/residual": 0.6,
    "rank/mean_cosine": 0.35,
    "rank/effective_rank": 40.0,
    "attention/entropy": 4.0,
    "attention/max_logit": 8.0,
    "attention/logit_deviation": 1.2,
    "stream/rms": 1.0,
    "stream/max_over_median": 12.0,
    "grad/qk_over_v": 0.3,
    "update/ratio": 1e-3,
}


def healthy(records=40, layers=12, every=50, seed=0):
    """A run whose metrics wander a little, with a predicted band of three of them."""
    draw = random.Random(seed)
    facts = {"layers": layers, "tokens": 128, "samples": 16, "untrained": 1, "model": "tiny GPT"}
    predicted = {
        (name, layer): (0.9 * STARTS[name] * slope(layer), 1.1 * STARTS[name] * slope(layer))
        for name in ("rank/residual", "rank/effective_rank", "attention/entropy")
        for layer in range(1, layers + 1)
    }
    history = History(facts, predicted)
    for number in range(records):
        values = {
            (name, layer): start * slope(layer) * math.exp(0.05 * draw.gauss(0, 1))
            for name, start in STARTS.items()
            if number or not MONITORED[name].name.startswith(("grad/", "update/"))
            for layer in range(1, layers + 1)
        }
        values["pooled/effective_rank", None] = 9 + 0.2 * draw.gauss(0, 1)
        values["pooled/mean_cosine", None] = 0.3 + 0.01 * draw.gauss(0, 1)
        if number:
            values[LOSS, None] = 2 + 5 * math.exp(-number / 15) + 0.05 * draw.gauss(0, 1)
        values[OVERHEAD, None] = 11 + draw.random()
        history.records.append(StepRecord(number * every, values))
    return history


def slope(layer):
    return 1 / (1 + 0.05 * layer)


def collapsing(records=60, layers=12, first=9, **more):
    """Residuals fall from a layer on, the logits of layer 3 grow, gradients vanish; judged."""
    quiet = healthy(records, layers, **more)
    history, board = History(quiet.facts, quiet.predicted), AlarmBoard()
    for number, record in enumerate(quiet.records):
        values = dict(record.values)
        late = max(0.0, number / records - 0.4)
        for layer in range(1, layers + 1):
            if layer >= first:
                fall = math.exp(-12 * late * (1 + 0.1 * (layer - first)))
                values["rank/residual", layer] *= fall
                values["rank/effective_rank", layer] = 1 + fall * (
                    values["rank/effective_rank", layer] - 1
                )
                if number:
                    values["grad/qk_over_v", layer] *= fall
            if layer == min(3, layers):
                values["attention/max_logit", layer] *= math.exp(9 * max(0.0, late - 0.2))
        history.add(StepRecord(record.step, values))
        board.update(history)
    return history


def broken(records=20, layers=4):
    """A run whose third layer becomes NaN, and then the loss."""
    quiet = healthy(records, layers)
    history, board = History(quiet.facts), AlarmBoard()
    for number, record in enumerate(quiet.records):
        values = dict(record.values)
        if number > records // 2:
            for name in ("rank/residual", "stream/rms", "attention/entropy"):
                values[name, 3] = math.inf if name == "stream/rms" else math.nan
                values[name, 4] = math.nan
        if number > records // 2 + 2:
            values[LOSS, None] = math.nan
        history.add(StepRecord(record.step, values))
        board.update(history)
    return history
