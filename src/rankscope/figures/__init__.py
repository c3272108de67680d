"""Charts, drawn from summary tables; nothing here measures anything."""

from rankscope.figures._axes import power_text
from rankscope.figures._axis_lines import by_axis
from rankscope.figures._axis_map import axis_map
from rankscope.figures._axis_medians import axis_medians
from rankscope.figures._axis_medians import axis_name as axis_name
from rankscope.figures._catalogue import (
    FIGURES,
    FigureKind,
    description,
    draw,
    heading,
    headings,
    metrics_of,
    reading,
)
from rankscope.figures._distributions import length_distributions
from rankscope.figures._heads import head_map
from rankscope.figures._layer_map import layer_map
from rankscope.figures._layers import by_depth, by_layer, by_model
from rankscope.figures._lengths import by_length
from rankscope.figures._offline import VEGA_LITE as VEGA_LITE
from rankscope.figures._offline import ScriptSafe
from rankscope.figures._offline import bundle as bundle
from rankscope.figures._offline import content_policy as content_policy
from rankscope.figures._offline import png as png
from rankscope.figures._offline import svg as svg
from rankscope.figures._phases import phase_map
from rankscope.figures._saving import labelled, printable, save
from rankscope.figures._steps import steps
from rankscope.figures._sweeps import by_setting
from rankscope.figures._theme import INK as INK
from rankscope.figures._theme import PALETTE as PALETTE
from rankscope.figures._theme import Figure, adaptive, dark_variables
from rankscope.figures._theme import configuration as configuration
from rankscope.figures._token_map import token_map
from rankscope.figures._trajectories import trajectories
from rankscope.metric_catalogue import Metric as MetricWords
from rankscope.metric_catalogue import metric as metric_words

__all__ = [
    "FIGURES",
    "Figure",
    "FigureKind",
    "MetricWords",
    "ScriptSafe",
    "adaptive",
    "axis_map",
    "axis_medians",
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
