"""Charts of summary tables; figures draw and never compute."""

from rankscope.process import optional_packages

with optional_packages():
    from rankscope.show.figures._axes import Tick as Tick
    from rankscope.show.figures._axes import Vertical as Vertical
    from rankscope.show.figures._axes import over as over
    from rankscope.show.figures._catalogue import (
        FIGURES,
        FigureKind,
        description,
        draw,
        heading,
        metrics_of,
    )
    from rankscope.show.figures._catalogue import headings as headings
    from rankscope.show.figures._catalogue import reading as reading
    from rankscope.show.figures._chart import VEGA_LITE as VEGA_LITE
    from rankscope.show.figures._chart import ScriptSafe as ScriptSafe
    from rankscope.show.figures._chart import bundle as bundle
    from rankscope.show.figures._chart import content_policy as content_policy
    from rankscope.show.figures._chart import labelled as labelled
    from rankscope.show.figures._chart import png as png
    from rankscope.show.figures._chart import printable as printable
    from rankscope.show.figures._chart import save
    from rankscope.show.figures._chart import start_renderer as start_renderer
    from rankscope.show.figures._chart import svg as svg
    from rankscope.show.figures._curves import (
        by_depth,
        by_layer,
        by_model,
        by_setting,
        steps,
        trajectories,
    )
    from rankscope.show.figures._heatmap import Shades as Shades
    from rankscope.show.figures._heatmap import cell_mark as cell_mark
    from rankscope.show.figures._lines import line_marks as line_marks
    from rankscope.show.figures._maps import head_map, layer_map, phase_map, token_map
    from rankscope.show.figures._paths import by_length, length_distributions
    from rankscope.show.figures._sweeps import axis_map, by_axis
    from rankscope.show.figures._theme import INK as INK
    from rankscope.show.figures._theme import PALETTE as PALETTE
    from rankscope.show.figures._theme import WORDS_AS_TITLE as WORDS_AS_TITLE
    from rankscope.show.figures._theme import Figure
    from rankscope.show.figures._theme import Look as Look
    from rankscope.show.figures._theme import adaptive as adaptive
    from rankscope.show.figures._theme import configuration as configuration
    from rankscope.show.figures._theme import dark_variables as dark_variables
    from rankscope.show.figures._training import by_step, step_map

__all__ = [
    "FIGURES",
    "Figure",
    "FigureKind",
    "axis_map",
    "by_axis",
    "by_depth",
    "by_layer",
    "by_length",
    "by_model",
    "by_setting",
    "by_step",
    "description",
    "draw",
    "head_map",
    "heading",
    "layer_map",
    "length_distributions",
    "metrics_of",
    "phase_map",
    "save",
    "step_map",
    "steps",
    "token_map",
    "trajectories",
]
