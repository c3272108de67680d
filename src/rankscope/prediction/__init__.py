"""The law of random networks: what they do to tokens, predicted from the tokens' inner products."""

from rankscope.prediction._backward import GRADIENTS as GRADIENTS
from rankscope.prediction._backward import measured_gradients
from rankscope.prediction._even import even_entropy as even_entropy
from rankscope.prediction._predict import predict
from rankscope.prediction._prediction import Band, Prediction
from rankscope.prediction._verdict import Outcome

__all__ = ["Band", "Outcome", "Prediction", "measured_gradients", "predict"]
