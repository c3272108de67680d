"""Charts, drawn from summary tables; nothing here measures anything."""

from rankscope.metric_catalogue import Metric as MetricWords
from rankscope.metric_catalogue import metric as metric_words
from rankscope.show.figures._axes import power_text
from rankscope.show.figures._axis_lines import by_axis
from rankscope.show.figures._axis_map import axis_map
from rankscope.show.figures._catalogue import (
    FIGURES,
    FigureKind,
    description,
    draw,
    heading,
    headings,
    metrics_of,
    reading,
)
from rankscope.show.figures._distributions import length_distributions
from rankscope.show.figures._heads import head_map
from rankscope.show.figures._layer_map import layer_map
from rankscope.show.figures._layers import by_depth, by_layer, by_model
from rankscope.show.figures._lengths import by_length
from rankscope.show.figures._offline import VEGA_LITE as VEGA_LITE
from rankscope.show.figures._offline import ScriptSafe
from rankscope.show.figures._offline import bundle as bundle
from rankscope.show.figures._offline import content_policy as content_policy
from rankscope.show.figures._offline import png as png
from rankscope.show.figures._offline import svg as svg
from rankscope.show.figures._phases import phase_map
from rankscope.show.figures._saving import labelled, printable, save
from rankscope.show.figures._steps import steps
from rankscope.show.figures._sweeps import by_setting
from rankscope.show.figures._theme import INK as INK
from rankscope.show.figures._theme import PALETTE as PALETTE
from rankscope.show.figures._theme import Figure, adaptive, dark_variables
from rankscope.show.figures._theme import configuration as configuration
from rankscope.show.figures._token_map import token_map
from rankscope.show.figures._trajectories import trajectories

__all__ = [
    "FIGURES",
    "Figure",
    "FigureKind",
    "MetricWords",
    "ScriptSafe",
    "adaptive",
    "axis_map",
    "by_axis",
    "by_depth",
    "by_layer",
    "by_length",
    "by_model",
    "by_setting",
    "dark_variables",
    "description",
    "draw",
    "head_map",
    "heading",
    "headings",
    "labelled",
    "layer_map",
    "length_distributions",
    "metric_words",
    "metrics_of",
    "phase_map",
    "power_text",
    "printable",
    "reading",
    "save",
    "steps",
    "token_map",
    "trajectories",
]
