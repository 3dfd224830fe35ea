"""The audit log: every entry is a line in a file that only its owner reads, or is counted; nobody waits for a disk."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigError
from server import audit
from server.audit import AuditLog, RotatingFile
from server.config import ServerConfig
from tests.running_server import RunningServer, poll_until, simulated
from tests.server.replies import COMPLETIONS

MANY = 1_000_000


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_every_entry_is_a_line(tmp_path: Path) -> None:
    """In order, ASCII only, whatever the text; a log that was there before is continued."""
    path = tmp_path / "audit.jsonl"
    entries = [{"number": number, "text": "a\nb\u2028\x00 é 🌶 \ud800"} for number in range(100)]
    for half in (entries[:50], entries[50:]):
        log = AuditLog(str(path), max_bytes=MANY, files=1)
        for entry in half:
            log.record(entry)
        log.close()
        assert log.dropped_total == 0
    assert lines(path) == entries
    assert path.read_bytes().isascii()


def test_only_its_owner_reads_it(tmp_path: Path) -> None:
    """The file and the rotated ones have mode 0600, whatever the umask."""
    before = os.umask(0)
    try:
        log = AuditLog(str(tmp_path / "a"), max_bytes=1, files=2)
        for number in range(3):
            log.record({"number": number})
        log.close()
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_it_is_rotated(tmp_path: Path) -> None:
    """No file is larger than its bound but by a single line, the newest is the plain name, the oldest is removed."""
    path = tmp_path / "a"
    log = AuditLog(str(path), max_bytes=40, files=2)
    for number in range(20):
        log.record({"n": 10 + number})  # 9 bytes with its newline
    log.record({"text": "x" * 100})
    log.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "a.1", "a.2"]
    assert lines(path) == [{"text": "x" * 100}]
    assert [line["n"] for name in ("a.2", "a.1") for line in lines(tmp_path / name)] == list(range(22, 30))


@pytest.mark.parametrize("path", ["/no/such/folder/audit.jsonl", "/dev/null/audit.jsonl", "/"])
def test_a_path_that_cannot_be_written(path: str) -> None:
    """One clear error at the start, with the setting and the path."""
    with pytest.raises(ConfigError, match=f"server.audit_log: {path} can't be written: "):
        AuditLog(path, max_bytes=MANY, files=1)


def test_it_is_off_by_default(tmp_path: Path) -> None:
    """No setting, no log."""
    assert AuditLog.from_config(ServerConfig()) is None
    log = AuditLog.from_config(ServerConfig(audit_log=str(tmp_path / "a")))
    assert log is not None
    log.close()


@contextmanager
def stuck_pipe(folder: Path) -> Iterator[tuple[Path, Callable[[], bytes]]]:
    """A pipe that takes some kilobytes and then nothing, until the function given drains it."""
    path = folder / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield path, lambda: os.read(reader, 1 << 20)
    finally:
        os.close(reader)


def test_a_stuck_disk_blocks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the writer stuck entries are kept up to the bound and then dropped and counted, each within a moment."""
    monkeypatch.setattr(audit, "MAX_WAITING_ENTRIES", 50)
    with stuck_pipe(tmp_path) as (path, _):
        log = AuditLog(str(path), max_bytes=MANY, files=1)
        began = time.monotonic()
        for _ in range(200):
            log.record({"text": "x" * 100_000})
        took = time.monotonic() - began
        assert log.dropped_total in (149, 150)  # one may be in the writer's hands
        assert took < 2
        began = time.monotonic()
        log.close(seconds=0.1)
        assert time.monotonic() - began < 1
        assert log.dropped_total == 200 - 1


def test_memory_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few large entries are dropped as many small ones are."""
    monkeypatch.setattr(audit, "MAX_WAITING_BYTES", 1_000_000)
    with stuck_pipe(tmp_path) as (path, _):
        log = AuditLog(str(path), max_bytes=MANY, files=1)
        for _ in range(20):
            log.record({"text": "x" * 200_000})
        assert log.dropped_total == 16
        log.close(seconds=0.01)


def test_a_disk_that_comes_back(tmp_path: Path) -> None:
    """What waited is written once the disk takes it again, whole and in order."""
    with stuck_pipe(tmp_path) as (path, drain):
        log = AuditLog(str(path), max_bytes=MANY, files=1)
        for number in range(10):
            log.record({"number": number, "text": "x" * 50_000})
        taken: list[bytes] = []
        closing = threading.Thread(target=log.close)
        closing.start()
        poll_until(lambda: not _drained(drain, taken) and not closing.is_alive(), 5, lambda: str(len(taken)))
        assert [json.loads(line)["number"] for line in b"".join(taken).splitlines()] == list(range(10))
        assert log.dropped_total == 0


def _drained(drain: Callable[[], bytes], taken: list[bytes]) -> bool:
    """Whether there was something, or may be."""
    try:
        taken.append(drain())
    except BlockingIOError:
        return True
    return taken[-1] != b""


def test_a_full_disk_loses_entries_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """Every entry that the disk refused is counted, and the first one is said."""
    log = AuditLog("/dev/full", max_bytes=MANY, files=1)
    for _ in range(5):
        log.record({"text": "x"})
    log.close()
    assert log.dropped_total == 5
    assert [record.message for record in caplog.records if "No space left" in record.message] != []
    assert len(caplog.records) == 1


def test_a_torn_line_spoils_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After half a line the disk is full: the next entry begins on a line of its own."""
    path = tmp_path / "a"
    file = RotatingFile(path, MANY, 1)
    real, left = os.write, [4]

    def short(descriptor: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(descriptor, data[: left[0]])
        left[0] -= written
        return written

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", short)
        with pytest.raises(OSError, match="No space left"):
            file.write(b'{"n":1}\n')
    file.write(b'{"n":2}\n')
    file.write(b'{"n":3}\n')
    file.close()
    assert path.read_bytes() == b'{"n"\n{"n":2}\n{"n":3}\n'


def test_a_rotation_that_fails_loses_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no new file can be opened what was written stays, however often it is tried, and it goes on later."""
    path = tmp_path / "a"
    file = RotatingFile(path, 10, 2)
    file.write(b'{"n":1}\n')
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", _refuse_to_open)
        for _ in range(5):
            with pytest.raises(OSError, match="no more files"):
                file.write(b'{"n":2}\n')
    file.write(b'{"n":3}\n')
    file.close()
    assert (lines(path), lines(tmp_path / "a.1")) == ([{"n": 3}], [{"n": 1}])


def _refuse_to_open(*_: object) -> int:
    raise OSError(errno.EMFILE, "no more files")


def test_a_server_with_a_stuck_audit_log(demo_model: Path, tmp_path: Path) -> None:
    """It serves as ever, and its end waits for the disk no longer than a few seconds."""
    with stuck_pipe(tmp_path) as (path, _):
        flags = simulated(demo_model, f"server.audit_log={path}")
        with RunningServer(*flags, log_folder=tmp_path) as server:
            for _ in range(3):
                body = b'{"prompt": [905], "max_tokens": 1' + b" " * 100_000 + b"}"
                assert server.post(COMPLETIONS, body).status_code == 200
            began = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began < 8
        assert "did not take the last entries" in server.log_file.read_text()
        assert "Traceback" not in server.log_file.read_text()
