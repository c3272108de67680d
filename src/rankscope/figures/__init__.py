"""Charts, drawn from summary tables; nothing here measures anything."""

from rankscope.figures.depths import by_depth
from rankscope.figures.distributions import length_distributions
from rankscope.figures.heads import head_map
from rankscope.figures.layers import by_layer, by_model
from rankscope.figures.lengths import by_length
from rankscope.figures.metric_words import MetricWords, metric_words
from rankscope.figures.saving import ScriptSafe, save
from rankscope.figures.scales import power_text
from rankscope.figures.settings import by_setting
from rankscope.figures.theme import Figure, adaptive, dark_variables

__all__ = [
    "Figure",
    "MetricWords",
    "ScriptSafe",
    "adaptive",
    "by_depth",
    "by_layer",
    "by_length",
    "by_model",
    "by_setting",
    "dark_variables",
    "head_map",
    "length_distributions",
    "metric_words",
    "power_text",
    "save",
]
