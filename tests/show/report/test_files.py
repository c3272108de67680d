"""Every kind of result as files."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from rankscope import tables
from rankscope.show.report import _files, _page, write


def test_a_table_a_picture_for_each_drawing_and_a_page(study, tmp_path):
    files = write(study, tmp_path / "new", charts=True)
    assert files == {
        "table": str(tmp_path / "new" / "masks.parquet"),
        "chart": str(tmp_path / "new" / "masks.png"),
        "chart-2": str(tmp_path / "new" / "masks-2.png"),
        "chart-3": str(tmp_path / "new" / "masks-3.png"),
        "page": str(tmp_path / "new" / "masks.html"),
    }
    assert {str(path) for path in (tmp_path / "new").iterdir()} == set(files.values())
    table, provenance = tables.read(files["table"])
    assert table.equals(study.table)
    assert provenance == study.provenance
    assert (tmp_path / "new" / "masks-3.png").read_bytes().startswith(b"\x89PNG")


def test_pictures_are_drawn_only_if_asked_for(study, tmp_path):
    assert set(write(study, tmp_path)) == {"table", "page"}
    assert {path.suffix for path in tmp_path.iterdir()} == {".parquet", ".html"}


def test_files_of_a_run_are_named_by_its_digest(claim, tmp_path):
    files = write(claim, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"d9-01234567.parquet", "d9-01234567.html"}
    assert set(files) == {"table", "page"}


def test_every_chart_is_built_once_and_is_the_same_in_picture_and_page(
    study, tmp_path, monkeypatch
):
    built, saved = [], []
    draw, save, write_html = _page.draw, _files.save, _files.write_html

    def counting(drawing, result):
        built.append(draw(drawing, result))
        return built[-1]

    def saving(chart, path):
        saved.append(chart)
        return save(chart, path)

    def writing(document, path):
        assert [chart.figure for chart in document.charts] == built
        return write_html(document, path)

    monkeypatch.setattr(_page, "draw", counting)
    monkeypatch.setattr(_files, "save", saving)
    monkeypatch.setattr(_files, "write_html", writing)
    write(study, tmp_path, charts=True)
    assert len(built) == len(study.drawings)
    for chart, own in zip(saved, built, strict=True):
        named = {**chart, "title": None}
        assert named == {**own.to_dict(), "title": None}  # the same, with a title above


def test_pictures_say_what_they_show_and_what_they_are_about(answer, tmp_path, monkeypatch):
    saved = {}
    monkeypatch.setattr(_files, "save", lambda chart, path: saved.update({Path(path).name: chart}))
    files = write(answer, tmp_path, charts=True)
    assert list(saved) == ["diagnose.png", "diagnose-2.png", "diagnose-3.png"]
    assert [name for name in files if name.startswith("chart")] == ["chart", "chart-2", "chart-3"]
    for chart in saved.values():
        assert chart["title"]["text"].startswith("Relative residual layer by layer")
        assert chart["title"]["subtitle"] == [answer.title]


def test_steps_run_up_to_the_whole(study, tmp_path):
    shares = []
    two = replace(study, drawings=study.drawings[:2])
    write(two, tmp_path, charts=True, on_step=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert shares[0] == pytest.approx(0.25)
    assert len(shares) == 4


def test_files_stay_in_their_folder_whatever_a_result_is_called(study, tmp_path):
    odd = replace(study, id="../a/b", provenance={"digest": "../../xx"}, drawings=())
    files = write(odd, tmp_path / "inside")
    assert {path.parent for path in map(Path, files.values())} == {tmp_path / "inside"}
    assert replace(odd, id="", provenance={}).stem == "result"


def test_terminal_escapes_in_labels_do_not_end_the_process(study, tmp_path):
    label = pl.col("variant").replace({study.table["variant"][0]: "\x1b[31mred"})
    odd = replace(study, table=study.table.with_columns(label), drawings=study.drawings[:1])
    assert Path(write(odd, tmp_path)["page"]).is_file()
