"""Files are whole or absent, and the one that was there stays until the new one is whole."""

import errno
import os
import socket
import stat

import pytest

from rankscope import tables
from rankscope.errors import InputError
from rankscope.process.files import write_file
from rankscope.show.report import Report, write_html


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), InputError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (MemoryError(), MemoryError),
    ],
)
def test_whatever_ends_the_writing_leaves_the_old_file_and_nothing_else(
    stop, said, tmp_path, monkeypatch
):
    path = tmp_path / "page.html"
    path.write_text("old")

    def fail(_: int) -> None:
        assert len(list(tmp_path.iterdir())) == 2
        raise stop

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(said) as raised:
        write_file(path, b"new")
    if said is InputError:
        assert str(raised.value) == f"{path} cannot be written: No space left on device."
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


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
    write_file(made, b"")
    assert plain.stat().st_mode == made.stat().st_mode


def test_who_reads_the_old_file_reads_all_of_it(tmp_path):
    """The new one takes its place in one move: there is never half of either."""
    path = tmp_path / "table.txt"
    path.write_text("old")
    with path.open() as reader:
        write(path, "new")
        assert reader.read() == "old"
    assert path.read_text() == "new"


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def write(path, text, **options):
    write_file(path, text.encode(), **options)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(path))


def make_device(path):
    """The same device as /dev/null, under another name; only root may."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("no device can be made here")


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (os.mkfifo, "a pipe"),
        (make_socket, "a socket"),
        (make_device, "a device"),
        (os.mkdir, "a folder"),
    ],
)
def test_only_a_regular_file_is_replaced(make, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    path = tmp_path / "table.csv"
    make(path)
    before = path.lstat()
    (tmp_path / "link.csv").symlink_to(path)
    table = tables.frame({"metric": ["rank"], "value": [1.0]})
    for name in (path, tmp_path / "link.csv"):
        with pytest.raises(InputError, match=f"table.csv is {kind}, not a regular file; choose"):
            tables.write_csv(table, name)
    assert (path.lstat().st_mode, path.lstat().st_ino) == (before.st_mode, before.st_ino)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.csv", "table.csv"]


def test_who_may_read_a_file_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "secret.txt"
    path.write_text("old")
    path.chmod(0o600)
    modes = []
    with monkeypatch.context() as patch:  # nor can others read it while it is written
        patch.setattr("os.fsync", lambda file: modes.append(stat.S_IMODE(os.fstat(file).st_mode)))
        write(path, "new")
    assert modes[0] == 0o600
    assert (path.read_text(), mode(path)) == ("new", 0o600)
    path.chmod(0o664)
    write(path, "newer")
    assert (path.read_text(), mode(path)) == ("newer", 0o664)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may")
def test_a_file_stays_its_owner_s(tmp_path):
    path = tmp_path / "theirs.txt"
    path.write_text("old")
    os.chown(path, 12345, 12345)
    write(path, "new")
    assert (path.stat().st_uid, path.stat().st_gid, path.read_text()) == (12345, 12345, "new")


def test_a_link_stays_and_its_file_is_replaced_unless_it_is_not_to_be_followed(tmp_path):
    link, file = tmp_path / "link.txt", tmp_path / "elsewhere" / "file.txt"
    link.symlink_to(file)
    for text in ("made", "replaced"):
        write(link, text)
        assert link.is_symlink()
        assert file.read_text() == text
    write(link, "here", follow_link=False)
    assert not link.is_symlink()
    assert (link.read_text(), file.read_text()) == ("here", "replaced")
    assert [each.name for each in file.parent.iterdir()] == ["file.txt"]


def test_links_that_lead_nowhere_are_said(tmp_path):
    for one, other in [("a", "b"), ("b", "a")]:
        (tmp_path / one).symlink_to(tmp_path / other)
    with pytest.raises(InputError, match="a cannot be written: "):
        write(tmp_path / "a", "text")
    with pytest.raises(InputError, match=r"cannot be written: .*embedded null"):
        write(tmp_path / "a\0b", "text")


def test_a_link_in_the_place_of_the_unfinished_file_is_not_followed(tmp_path, monkeypatch):
    victim, path = tmp_path / "victim", tmp_path / "file.txt"
    victim.write_text("precious")
    monkeypatch.setattr("secrets.token_hex", lambda _: "known")
    (tmp_path / ".rankscope-known").symlink_to(victim)
    with pytest.raises(InputError, match=r"file\.txt cannot be written: File exists"):
        write(path, "new")
    assert victim.read_text() == "precious"
    assert not path.exists()


def test_a_name_may_be_as_long_as_names_may_be(tmp_path):
    path = tmp_path / f"{'n' * 251}.csv"
    assert write_file(path, b"1.5").read_bytes() == b"1.5"
    with pytest.raises(InputError, match="cannot be written: File name too long"):
        write_file(tmp_path / f"{'n' * 252}.csv", b"1.5")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["\ud800", "\udcff.csv"])
def test_a_name_that_is_no_unicode_is_written_or_said(name, tmp_path):
    table = tables.frame({"metric": ["rank"], "value": [1.0]})
    for write_table in (lambda path: tables.write(table, path, {}), lambda path: write(path, "x")):
        try:
            write_table(tmp_path / name)
        except InputError as error:
            str(error).encode()  # it can be printed
        else:
            assert name == "\udcff.csv"  # bytes that are no text, which a name may be


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may")
def test_another_group_may_not_read_what_only_the_owner_s_could(tmp_path, monkeypatch):
    """Where the group cannot be kept, it has no more rights than everybody."""
    path = tmp_path / "theirs.txt"
    path.write_text("old")
    os.chown(path, 12345, 12345)
    path.chmod(0o664)

    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.chown", refused)
    write(path, "new")
    assert (path.read_text(), mode(path)) == ("new", 0o644)
