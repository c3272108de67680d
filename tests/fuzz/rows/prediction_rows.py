"""Predictions and measured gradients."""

import torch
from table import add
from things import MASK, NET, X

from rankscope import Spec
from rankscope.core import prediction

SMALL = Spec(1, 1, 4)
add(
    "prediction.predict",
    prediction.predict,
    spec=SMALL,
    x=X,
    draws=2,
    seed=0,
    token_mask=MASK,
    gradients=True,
    repeat=1,
    infinite_width=False,
)
add("prediction.predict (kernel)", prediction.predict, spec=SMALL, kernel=torch.eye(3), draws=2)
add(
    "prediction.measured_gradients",
    prediction.measured_gradients,
    network=NET,
    x=X,
    token_mask=MASK,
    seed=0,
)
FOUND = prediction.predict(SMALL, X, draws=2)
add("prediction.Prediction.band", FOUND.band, metric="mean_cosine")
add(
    "prediction.PredictedOutcome",
    prediction.PredictedOutcome,
    about="tokens",
    kind="depth collapse",
    share=0.9,
    layers=4,
    layer=3,
    figures={"last": -4.0},
    shares={"depth collapse": 0.9},
)
