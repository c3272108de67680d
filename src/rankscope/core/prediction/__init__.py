"""Predictions of what random networks do to tokens, from the inner products of the tokens."""

from rankscope.core.prediction._gradients import GRADIENTS as GRADIENTS
from rankscope.core.prediction._gradients import measured_gradients
from rankscope.core.prediction._outcomes import PredictedOutcome
from rankscope.core.prediction._predict import even_entropy as even_entropy
from rankscope.core.prediction._predict import predict
from rankscope.core.prediction._prediction import Band, Prediction

__all__ = ["Band", "PredictedOutcome", "Prediction", "measured_gradients", "predict"]
