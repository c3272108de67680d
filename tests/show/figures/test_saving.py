"""Charts as files."""

import base64
import hashlib
import json
import re
import threading
import time

import polars as pl
import pytest

from rankscope.errors import InputError
from rankscope.show.figures import ScriptSafe, _chart, by_layer, save


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
    assert page.count("<script") == page.count("</script") == 3
    assert "alert(1)" in page


def test_a_page_may_run_its_own_scripts_and_load_nothing(chart, tmp_path):
    page = save(chart, tmp_path / "chart.html").read_text("utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none'; img-src data:;")
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert len(scripts) == policy.count("sha256-") == 2


def test_charts_save_themselves_offline_and_show_a_picture_in_notebooks(chart, tmp_path):
    chart.properties(title="another").save(tmp_path / "own.html")
    chart.save(str(tmp_path / "own.svg"))
    chart.save(tmp_path / "own.json")
    page = (tmp_path / "own.html").read_text("utf-8")
    assert "Content-Security-Policy" in page
    assert "cdn" not in page[:2000]
    assert (tmp_path / "own.svg").read_text("utf-8").startswith("<svg")
    assert json.loads((tmp_path / "own.json").read_text("utf-8"))["concat"]
    shown = chart._repr_mimebundle_()
    assert shown["image/svg+xml"].startswith("<svg")
    assert set(shown) == {"image/svg+xml", "text/plain"}


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


def test_the_script_of_pages_is_made_once_even_while_the_renderer_starts(monkeypatch):
    made = []

    def bundle(*_, **__):
        made.append(threading.current_thread())
        time.sleep(0.2)
        return "script"

    with monkeypatch.context() as patched:
        patched.setattr(_chart.vl_convert, "javascript_bundle", bundle)
        _chart._bundle.cache_clear()
        _chart.start_renderer()
        assert _chart.bundle() == "script"
        assert len(made) == 1
    _chart._bundle.cache_clear()


def test_a_renderer_that_does_not_start_is_an_error_where_a_page_is_written(monkeypatch):
    def refuse():
        raise InputError("too little memory")

    monkeypatch.setattr(_chart, "check_address_space", refuse)
    _chart._bundle.cache_clear()
    before = threading.active_count()
    _chart.start_renderer()
    while threading.active_count() > before:
        time.sleep(0.01)
    with pytest.raises(InputError, match="too little memory"):
        _chart.bundle()
