"""Charts as files."""

import json
import re

import polars as pl
import pytest

from rankscope.errors import InputError
from rankscope.figures import ScriptSafe, by_layer, save


def test_png_has_twice_the_pixels(summary, tmp_path):
    path = save(by_layer(summary, metrics=["mean_cosine"]), tmp_path / "new" / "chart.PNG")
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    assert int.from_bytes(head[16:20], "big") > 2 * 400


def test_svg_holds_the_words(chart, tmp_path):
    text = save(chart, str(tmp_path / "chart.svg")).read_text("utf-8")
    assert text.startswith("<svg")
    assert "float32 noise floor" in text


def test_html_works_offline_and_cannot_be_broken_out_of(summary, tmp_path):
    attack = "</script><script>alert(1)</script>"
    table = summary.with_columns(pl.col("variant").replace({"SAN": attack}))
    page = save(by_layer(table, metrics=["dispersion"]), tmp_path / "chart.html").read_text("utf-8")
    assert "vegaEmbed" in page
    outside = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"<(script|link)[^>]+(src|href)=|<img|url\(", outside + page[:2000])
    assert page.count("<script") == page.count("</script") == 2
    assert "alert(1)" in page


@pytest.mark.parametrize("name", ["chart.pdf", "chart", "chart.jpeg"])
def test_other_suffixes_are_refused(chart, tmp_path, name):
    with pytest.raises(InputError, match=r"end it in \.html, \.svg, \.png"):
        save(chart, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_script_safe_json_reads_back_as_it_was():
    value = {"a": "</script> & <!-- \u2028\u2029", "b": [1.5e-7, None, True]}
    written = json.dumps(value, cls=ScriptSafe, ensure_ascii=False)
    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == value


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_control_characters_do_not_reach_the_renderer(summary, tmp_path, suffix):
    """It would end the process: they have no place in XML."""
    table = summary.with_columns(pl.col("variant").replace({"SAN": "\x1b[31mred\x00"}))
    path = save(by_layer(table, metrics=["dispersion"]), tmp_path / f"chart.{suffix}")
    assert path.stat().st_size > 1000
