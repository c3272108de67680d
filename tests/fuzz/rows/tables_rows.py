"""Tables, results, figures and reports."""

from rich.console import Console
from table import add
from things import (
    BY_VARIANT,
    CHART,
    DRAWING,
    LAYERS,
    LENGTHS,
    PAGE,
    RECORD,
    RESULT,
    RUN,
    SUMMARY,
    SWEPT,
    TABLE,
    VARIANTS,
    WRITTEN,
    table_of,
)

from rankscope import experiments, metric_catalogue, results, tables
from rankscope.run import over_seeds
from rankscope.show import figures, report

add("tables.frame", tables.frame, columns={"metric": ["a"], "value": [1.0], "layer": [0]})
add("tables.from_rows", tables.from_rows, names=("metric", "value"), rows=[("a", 1.0)])
add("tables.stack", tables.stack, tables=[LAYERS, VARIANTS])
add("tables.joined", tables.joined, tables={"a": LAYERS}, column="variant")
add("tables.check_kinds", tables.check_kinds, table=VARIANTS, numbers=("value",))
add("tables.summary", tables.summary, table=VARIANTS)
add("tables.axis_name", tables.axis_name, name="depth", columns=["layers"])
add("tables.write_csv", tables.write_csv, table=LAYERS, path="layers.csv")
add(
    "tables.write",
    tables.write,
    table=LAYERS,
    path="table.parquet",
    provenance={"seed": 0},
    more={"a": "b"},
)
METRIC = metric_catalogue.metric("residual")
add("tables.read", tables.read, path=WRITTEN)
add("tables.to_parquet", tables.to_parquet, table=LAYERS, metadata={"a": "b"})
add("tables.from_bytes", tables.from_bytes, content=WRITTEN.read_bytes(), name="a")
add("tables.axes_of", tables.axes_of, columns=["run", "heads", "metric", "value"])
add("tables.from_parquet", tables.from_parquet, path=WRITTEN)
add("results.write", results.write, result=RESULT, path="again.parquet")
add("results.read", results.read, path=RECORD)
add("metric_catalogue.knowing", metric_catalogue.knowing, metrics=[METRIC])
add("metric_catalogue.metric", metric_catalogue.metric, name="residual")
for one in ("metric_catalogue.Metric",):
    add(
        one,
        metric_catalogue.Metric,
        name="mine",
        title="Mine",
        symbol="m",
        scale="log",
        meaning="",
        definition="",
        collapse="down",
        includes=(0.0,),
        marks=((1.0, "one"),),
        of="",
        module="rankscope.core.metrics",
    )
for one in (
    "results.Result",
    "rankscope.Result",
):
    add(
        one,
        results.Result,
        id="a",
        title="b",
        question="c",
        sentences=("d",),
        table=LAYERS,
        provenance={"seed": 0},
        source="e",
        judgement=results.Judgement("holds", "all"),
        beyond=None,
        findings=(),
        key_figures={"a": 1.0},
        drawings=(DRAWING,),
        shown=("residual",),
        headline=results.Headline("a"),
        warnings=("b",),
        listings=(),
        parts=(results.Part("a"),),
    )
add("results.literal", results.literal, text="**x**")
for one in ("results.Finding", "experiments.Finding"):
    add(
        one,
        results.Finding,
        kind="a",
        fate="absent",
        sentence="b",
        rule="c",
        figure=1.0,
        layer=2,
        part="d",
        found_in=1,
        samples=2,
    )
add("results.Headline", results.Headline, text="a", tone="holds")
add(
    "results.Listing",
    results.Listing,
    title="a",
    columns=("b", "c"),
    rows=(("d", 1.0),),
    note="e",
)
add(
    "results.Part",
    results.Part,
    title="a",
    sentences=("b",),
    listings=(results.Listing("a", ("b",), ((1,),)),),
    drawings=(DRAWING,),
)
add("results.Judgement", results.Judgement, verdict="holds", domain="all", on="")
add(
    "results.Drawing",
    results.Drawing,
    figure="by_depth",
    caption="",
    metric="residual",
    options={"log_depth": True},
    only={"variant": ("SAN",)},
    roles={"SAN": "bound"},
    title="a",
)
add(
    "figures.FigureKind",
    figures.FigureKind,
    function=figures.by_depth,
    draws="summary",
    reading="a",
    against="b",
    metric="",
    places=("layer",),
)
add(
    "figures.by_depth",
    figures.by_depth,
    summary=BY_VARIANT,
    metric="residual",
    log_depth=True,
    lowest=-3.0,
    highest=None,
    roles={"SAN": "bound"},
    title="a",
)
add("figures.by_layer", figures.by_layer, summary=SUMMARY, metrics=["residual"], title="a")
add(
    "figures.by_model",
    figures.by_model,
    summary=tables.summary(tables.joined({"m": VARIANTS}, column="model")),
    metric="residual",
    title="a",
)
add(
    "figures.by_setting",
    figures.by_setting,
    summary=tables.summary(
        table_of(parameter=["width"] * 4, setting=[1.0, 2.0, 1.0, 2.0], sample=[0, 0, 1, 1])
    ),
    metric="residual",
    roles={},
    title="a",
)
add("figures.by_length", figures.by_length, summary=LENGTHS, title="a")
add(
    "figures.head_map",
    figures.head_map,
    table=table_of(layer=[1, 1, 2, 2], head=[0, 1, 0, 1], sample=[0] * 4).with_columns(
        metric=tables.pl.lit("residual_share")
    ),
    metric="residual_share",
    title="a",
)
add("figures.steps", figures.steps, summary=BY_VARIANT, metric="residual", title="a")
add(
    "figures.layer_map",
    figures.layer_map,
    summary=tables.summary(table_of(layer=[1, 1, 2, 2], index=[1, 2, 1, 2])),
    metric="residual",
    along="index",
    title="a",
)
STEPS = table_of(step=[0, 0, 1, 1], layer=[1, 2, 1, 2])
add("figures.step_map", figures.step_map, table=STEPS, metric="residual", events=[], title="a")
add(
    "figures.by_step",
    figures.by_step,
    table=STEPS,
    metrics="residual",
    layers=[1, 2],
    events=["residual"],
    band=["/low", "/high"],
    title="a",
)
add(
    "figures.token_map",
    figures.token_map,
    table=table_of(layer=[1] * 4, token=[0, 0, 1, 1], other_token=[0, 1, 0, 1]),
    metric="residual",
    labels=["a", "b"],
    title="a",
)
add("figures.labelled", figures.labelled, spec={"mark": "point"}, title="a", about="b")
add("figures.description", figures.description, drawing=DRAWING, result=RESULT)
add("figures.metrics_of", figures.metrics_of, drawing=DRAWING, result=RESULT)
add(
    "figures.phase_map",
    figures.phase_map,
    summary=tables.summary(
        table_of(layer=[1, 1, 2, 2], setting=[1.0, 2.0, 1.0, 2.0], sample=[0] * 4)
    ),
    metric="residual",
    boundary=0.5,
    lowest=0.1,
    highest=2.0,
    marks="measured",
    title="a",
)
SELECTION = {"layer": 1, "below": None, "pool": ("seed",)}
add(
    "tables.pooled",
    tables.pooled,
    table=SWEPT,
    metric="residual",
    by=["heads"],
    **SELECTION,
)
add(
    "figures.by_axis",
    figures.by_axis,
    table=SWEPT,
    metric="residual",
    x="heads",
    color="mask",
    facet=None,
    **SELECTION,
    title="a",
)
add(
    "figures.axis_map",
    figures.axis_map,
    table=SWEPT,
    metric="residual",
    x="heads",
    y="mask",
    facet=None,
    **SELECTION,
    boundary=0.5,
    title="a",
)
add(
    "figures.length_distributions",
    figures.length_distributions,
    table=table_of(model=["m"] * 4, length=[0, 1, 2, 3]).with_columns(
        metric=tables.pl.lit("proportion")
    ),
    title="a",
)
add(
    "figures.trajectories",
    figures.trajectories,
    table=tables.from_rows(
        ("model", "variant", "layer", "parameter", "metric", "value"),
        [
            ("a", "pure", step, "first", f"{axis}_coordinate", 0.1 * step)
            for step in range(3)
            for axis in "xy"
        ],
    ),
    title="a",
)
add("figures.draw", figures.draw, drawing=DRAWING, result=RESULT)
add("figures.heading", figures.heading, drawing=DRAWING)
add("figures.headings", figures.headings, drawings=[DRAWING, DRAWING])
add("figures.reading", figures.reading, drawing=DRAWING)
add("figures.printable", figures.printable, value={"a": [1.0]})
add("figures.adaptive", figures.adaptive, spec={"config": {"a": "#000000"}})
add("figures.save", figures.save, chart=CHART, path="chart.html")
add("figures.ScriptSafe.encode", figures.ScriptSafe().encode, o={"a": "</script>"})
add("report.page", report.page, result=RESULT)
add("report.notebook", report.notebook, result=RESULT)
add("report.show", report.show, result=RESULT, console=Console(file=open("shown.txt", "w")))  # noqa: SIM115, PTH123
add("report.to_json", report.to_json, result=RESULT, files={"page": "a.html"}, with_table=True)
add("report.write", report.write, result=RESULT, folder="pages", on_step=lambda _: None)
add("report.write_html", report.write_html, report=PAGE, path="page.html")
add(
    "report.write_overview",
    report.write_overview,
    claims=[experiments.CATALOGUE["D1"]],
    series=over_seeds([RUN]),
    path="overview.html",
)
add(
    "report.Chart",
    report.Chart,
    figure=CHART,
    title="a",
    text="b",
    description="c",
    metrics=[METRIC],
)
add("report.Table", report.Table, rows=LAYERS, caption="a", note="b")
add("report.Section", report.Section, title="a", text="b", blocks=[TABLE])
add(
    "report.Report",
    report.Report,
    title="a",
    lead="b",
    sections=[report.Section("a")],
    provenance={"a": "b"},
    overline="",
    warnings=["a"],
    headline=results.Headline("a", "holds"),
    answer="b",
    judgements={"a": results.Judgement("holds", "all")},
    key_figures={"a": 1.0},
    about="c",
)
