"""The options of ``rankscope sweep``, ``sweep status`` and ``sweep table``."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from rankscope.cli.options import Options, _option

_run = functools.partial(_option, panel="Run")
_engine = functools.partial(_option, panel="Engine")
_ray = functools.partial(_option, panel="Ray")
_output = functools.partial(_option, panel="Output")
_chart = functools.partial(_option, panel="Chart")
_JSON = _output("The answer as JSON on standard output.", "--json")


@dataclass(frozen=True)
class SweepOptions(Options):
    """How a grid is run, and where."""

    output: Annotated[
        Path | None,
        _output("Folder for results; rankscope-output/NAME unless given, after the grid's file."),
    ] = None
    as_json: Annotated[bool, _JSON] = False
    dry_run: Annotated[
        bool, _run("Only check the grid, and say how long it will take.", "--dry-run")
    ] = False
    quick: Annotated[
        bool, _run("The grid's quick form: what its table 'quick' replaces.", "--quick")
    ] = False
    retry_failed: Annotated[
        bool, _run("Also repeat runs that failed before.", "--retry-failed")
    ] = False
    wait: Annotated[bool, _run("Wait until no other sweep works in the folder.", "--wait")] = False
    engine: Annotated[
        Literal["processes", "inline", "ray"],
        _engine("Processes of this machine, this process alone, or a Ray cluster."),
    ] = "processes"
    workers: Annotated[int | None, _engine("Processes; one for each core unless given.", min=1)] = (
        None
    )
    address: Annotated[
        str | None, _ray("Of a cluster: auto, host:port, ray://host:port; unless given, a new one.")
    ] = None
    cpus: Annotated[float | None, _ray("CPUs a run needs; 1 unless given.", min=0)] = None
    gpus: Annotated[float | None, _ray("GPUs a run needs; 0 unless given.", min=0)] = None
    memory: Annotated[float | None, _ray("GiB of memory a run needs.", min=0.001)] = None


@dataclass(frozen=True)
class StatusOptions(Options):
    """How the answer is printed."""

    as_json: Annotated[bool, _JSON] = False


@dataclass(frozen=True)
class TableOptions(Options):
    """What is drawn along which axis, and where it goes."""

    x: Annotated[str | None, _chart("The axis to the right, or 'layer'; depth is layers.")] = None
    y: Annotated[str | None, _chart("The metric upwards; the only one unless given.")] = None
    color: Annotated[str | None, _chart("An axis with a curve for each value.")] = None
    facet: Annotated[str | None, _chart("An axis with a panel for each value.")] = None
    heatmap: Annotated[
        str | None, _chart("Two axes, X,Y: shades of the metric over both.", "--map")
    ] = None
    layer: Annotated[
        int | None, _chart("The layer looked at; each run's last unless given.", min=0)
    ] = None
    below: Annotated[
        float | None, _chart("Instead of the metric, the first layer at which it is below this.")
    ] = None
    boundary: Annotated[
        float | None, _chart("On a map, a line where the metric crosses this value.")
    ] = None
    only: Annotated[
        list[str] | None, _chart("AXIS=VALUE[,VALUE]: leave others out; may be repeated.")
    ] = None
    pool: Annotated[str, _chart("Axes that medians go over, beside samples, comma-separated.")] = (
        "seed"
    )
    output: Annotated[
        Path | None,
        _output("A chart (.html, .png, .svg) or a table (.parquet, .csv), by the file's ending."),
    ] = None
    as_json: Annotated[bool, _JSON] = False
