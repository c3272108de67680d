"""Files are whole or absent, and the one that was there stays until the new one is whole."""

import errno

import pytest

from rankscope import tables
from rankscope.errors import InputError
from rankscope.process.files import whole_file
from rankscope.show.report import Report, write_html


def test_a_file_that_fails_half_way_leaves_the_old_one_and_nothing_else(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")

    def write_half() -> None:
        with whole_file(path) as unfinished:
            unfinished.write_text("ne")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(InputError, match=r"page.html cannot be written: No space left on device\."):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, MemoryError])
def test_whatever_ends_the_writing_leaves_nothing_behind(tmp_path, stop):
    def write_half() -> None:
        with whole_file(tmp_path / "new" / "table.txt") as unfinished:
            unfinished.write_text("ne")
            raise stop

    with pytest.raises(stop):
        write_half()
    assert list((tmp_path / "new").iterdir()) == []


def test_a_folder_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file/page\.html cannot be written"):
        write_html(Report("t", "l"), tmp_path / "file" / "page.html")


def test_a_table_takes_the_place_of_another_at_once(tmp_path):
    path = tmp_path / "table.parquet"
    for value in (1.0, 2.0):
        tables.write(tables.frame({"metric": ["rank"], "value": [value]}), path, {"seed": 0})
    assert tables.read(path)[0]["value"].to_list() == [2.0]
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_may_be_read_by_others_as_usual(tmp_path):
    plain, made = tmp_path / "plain", tmp_path / "made"
    plain.touch()
    with whole_file(made) as unfinished:
        unfinished.touch()
    assert plain.stat().st_mode == made.stat().st_mode


def test_who_reads_the_old_file_reads_all_of_it(tmp_path):
    """The new one takes its place in one move: there is never half of either."""
    path = tmp_path / "table.txt"
    path.write_text("old")
    with path.open() as reader:
        with whole_file(path) as unfinished:
            unfinished.write_text("new")
        assert reader.read() == "old"
    assert path.read_text() == "new"
