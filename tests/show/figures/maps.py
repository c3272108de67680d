"""Reading the specification of a map of shades: its cells, its sides, its bar."""

import json


def data_of(spec, panel, mark):
    """The rows of a mark; Altair lifts those that several share."""
    data = mark.get("data") or spec["concat"][panel].get("data") or spec["data"]
    return spec["datasets"][data["name"]] if "name" in data else data["values"]


def shaded(spec, panel=0):
    """The mark that draws the shaded cells, not the grey ones and not the bar below."""
    (cell,) = (
        mark
        for mark in spec["concat"][panel]["layer"]
        if mark["encoding"].get("color", {}).get("field") == "shade" and "transform" in mark
    )
    return cell


def cells_of(spec, panel=0):
    """The rows of the cells, by what they are called across and upwards."""
    rows = data_of(spec, panel, shaded(spec, panel))
    assert len({(row["x"], row["y"]) for row in rows}) == len(rows)
    return {(row["x"], row["y"]): row for row in rows}


def side_of(spec, channel, panel=0):
    """What the places along a side are called, from the left or from the bottom up."""
    encoding = shaded(spec, panel)["encoding"][channel]
    names = json.loads(encoding["axis"]["labelExpr"].removesuffix("[datum.value]"))
    assert encoding["scale"]["domain"] == [-0.5, len(names) - 0.5]
    return names[::-1] if encoding["scale"].get("reverse") else names


def named_on(spec, channel, panel=0):
    """Those of them that the axis names, in the order of the table."""
    axis = shaded(spec, panel)["encoding"][channel]["axis"]
    names = json.loads(axis["labelExpr"].removesuffix("[datum.value]"))
    return [names[at] for at in axis["values"]]


def scale_of(spec, panel=0):
    return shaded(spec, panel)["encoding"]["color"]["scale"]
