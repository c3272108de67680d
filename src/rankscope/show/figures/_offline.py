"""Pages that draw charts with nothing from elsewhere, and may load nothing."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from string import Template
from typing import Any

import altair as alt
import vl_convert

from rankscope.errors import KindError

VEGA_LITE = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
"""The version of Vega-Lite that Altair writes for, as vl-convert names it."""

_PAGE = Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="rankscope">
<title>$title</title>
<style>
body { margin: 0; padding: 1rem; background: #ffffff; }
#chart { width: 100%; }
#chart svg { max-width: 100%; height: auto; }
</style>
</head>
<body>
<main id="chart"></main>
<script type="application/json" id="specification">$data</script>
$scripts
</body>
</html>
""")
_DRAW = """\
vegaEmbed("#chart", JSON.parse(document.getElementById("specification").textContent),
  {renderer: "svg", actions: false});"""


class ScriptSafe(json.JSONEncoder):
    """JSON that can stand inside a ``<script>``: no text in it can end the element."""

    def encode(self, o: Any) -> str:
        """Write angle brackets and ampersands as escapes; the value read back is the same."""
        try:
            text = super().encode(o)
        except (TypeError, ValueError, RecursionError) as error:
            raise KindError(f"this cannot be written as JSON: {error}") from None
        for character in "<>&\u2028\u2029":
            text = text.replace(character, f"\\u{ord(character):04x}")
        return text


@cache
def bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script that needs nothing else."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)


def content_policy(scripts: Sequence[str]) -> str:
    """What a browser may do with a page: run these very scripts, and load nothing.

    Vega compiles its expressions, hence ``unsafe-eval``; its tooltip brings its own style.
    """
    digests = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts)
    allowed = " ".join(["'unsafe-eval'", *(f"'sha256-{digest}'" for digest in digests)])
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}; "
        "base-uri 'none'; form-action 'none'"
    )


def chart_page(spec: Mapping[str, Any]) -> str:
    """A page with one chart and nothing else."""
    scripts = [bundle(), _DRAW]
    return _PAGE.substitute(
        title=escape(_title(spec)),
        policy=content_policy(scripts),
        data=json.dumps(spec, cls=ScriptSafe, ensure_ascii=False, separators=(",", ":")),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def _title(spec: Mapping[str, Any]) -> str:
    """What a chart is called, if it is."""
    title = spec.get("title", "")
    text = title.get("text", "") if isinstance(title, Mapping) else title
    return text if isinstance(text, str) and text else "Chart"


def svg(spec: Mapping[str, Any]) -> str:
    """A chart as a picture; one that would have to load something cannot be drawn."""
    return vl_convert.vegalite_to_svg(dict(spec), vl_version=VEGA_LITE, allowed_base_urls=[])


def png(spec: Mapping[str, Any], *, scale: float = 2.0) -> bytes:
    """A chart as a picture of dots; one that would have to load something cannot be drawn."""
    return vl_convert.vegalite_to_png(
        dict(spec), vl_version=VEGA_LITE, scale=scale, allowed_base_urls=[]
    )
