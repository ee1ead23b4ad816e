"""The journal: whole lines whatever happens, one writer."""

import errno
import os

import pytest

from perfgrid.engine.errors import PerfgridError
from perfgrid.results.store.journal import NAME, Entry, Journal, read


@pytest.fixture
def written(tmp_path):
    journal = Journal(tmp_path)
    journal.begin(tiles=3, seal="x")
    journal.add(Entry(0, "aa", 2, {"fits": 2}))
    journal.add(Entry(2, "bb"))
    journal.close()
    return tmp_path / NAME


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_line_cut_short_is_dropped_and_written_over(written, cut):
    whole = written.read_bytes()
    written.write_bytes(whole[:-cut])
    assert set(read(written)[1]) == {0}
    journal = Journal(written.parent)
    assert journal.header == {"tiles": 3, "seal": "x"}
    assert journal.entries == {0: Entry(0, "aa", 2, {"fits": 2})}
    journal.add(Entry(2, "bb"))
    journal.close()
    assert written.read_bytes() == whole


def test_every_cut_leaves_a_valid_journal(written):
    whole = written.read_bytes()
    for size in range(len(whole)):
        written.write_bytes(whole[:size])
        header, entries, valid = read(written)
        assert whole[:valid].count(b"\n") == (header is not None) + len(entries)


def test_damage_before_the_end_is_reported(written):
    written.write_bytes(written.read_bytes().replace(b'"tile":0', b'"tile:0'))
    with pytest.raises(PerfgridError, match="damaged in line 2"):
        read(written)


def test_a_full_disk_leaves_whole_lines(written, monkeypatch):
    whole = written.read_bytes()
    journal = Journal(written.parent)

    def full(handle, data):
        os.pwrite(handle, data[:7], len(whole))  # a part of the line still found room
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("perfgrid.results.store.journal.os.write", full)
    with pytest.raises(OSError, match="No space left"):
        journal.add(Entry(1, "cc"))
    monkeypatch.undo()
    assert written.read_bytes() == whole
    journal.add(Entry(1, "cc"))
    journal.close()
    assert set(read(written)[1]) == {0, 1, 2}


def test_one_process_writes_a_store(written):
    journal = Journal(written.parent)
    with pytest.raises(PerfgridError, match="is being written by another process"):
        Journal(written.parent)  # the lock belongs to the open file: another process meets it alike
    journal.close()
    Journal(written.parent).close()
