"""The front-end benchmark, as far as it needs no vLLM: what it counts, what the core says, how runs become a table."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks.frontend import token_ids
from benchmarks.frontend.__main__ import table
from benchmarks.frontend.board import DELIVERED, Board
from benchmarks.frontend.client import SOURCE, ClientFigures, Load
from benchmarks.frontend.matrix import Cell, Run, rows
from benchmarks.served import vllm_words
from benchmarks.vllm_command import version


def test_the_page_is_one_for_all_who_open_it(tmp_path: Path) -> None:
    """Each number is seen by the others, and the first is where the C client adds to."""
    file = tmp_path / "board"
    one, other = Board.create(file), Board(file)
    one.delivered, one.interval_us, other.tokens = 7, 20_000, 2**40
    assert (other.delivered, other.interval_us, one.tokens, one.steps) == (7, 20_000, 2**40, 0)
    assert int.from_bytes(file.read_bytes()[:8], "little") == one.words[DELIVERED] == 7
    assert "BOARD_BYTES = 4096" in SOURCE.read_text()


def test_every_token_is_text_of_its_own(demo_model: Path, tmp_path: Path) -> None:
    """So that a front end owes one event for each."""
    out = tmp_path / "ids.json"
    count = token_ids.write(demo_model, out)
    ids = [int(part) for part in out.read_text().strip("[]").split(",")]
    tokenizer = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    assert len(ids) == count > 2_000
    assert all(tokenizer.decode([id_], skip_special_tokens=True).isascii() for id_ in set(ids))
    assert all(tokenizer.decode([id_], skip_special_tokens=True) for id_ in set(ids))


def run(server: str, cpu: float, streams: int = 64) -> Run:
    """One of so many microseconds a token."""
    load = Load("chat", streams, 1, 256)
    figures = ClientFigures(load.tokens, 1, 1, 1, 1, 0, 1.0, 0.1, 1.0, 2.0, 3.0, 4.0, 5.0)
    return Run(server, Cell(load, 0.0), cpu, 0.9, 1_000.0, 1.0, 200.0, 0, 0, figures)


def test_rows_are_medians_and_ratios_are_within_a_round() -> None:
    """A machine that slows down in one round slows both; the other cells are rows of their own."""
    runs = [run("tailrace", 20), run("vllm", 100), run("tailrace", 60), run("vllm", 200), run("tailrace", 30)]
    runs += [run("vllm", 90), run("tailrace", 5, streams=1)]
    ours, theirs, single = rows(runs)
    assert (ours.cpu_us_per_token, ours.lowest_cpu_us, ours.highest_cpu_us, ours.runs) == (30, 20, 60, 3)
    assert ours.share_of_vllm == pytest.approx(0.3)
    assert (theirs.share_of_vllm, single.share_of_vllm) == (1, None)
    lines = table([ours, theirs, single]).splitlines()
    assert len(lines) == 5
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| chat | 64 | as delivered | tailrace | 3 | 30 | 20 | 60 | 0.3 |")


def test_vllms_words_need_no_vllm() -> None:
    """Its server is told the same as ours."""
    assert vllm_words(Path("m"), {"max_num_seqs": 8})[-2:] == ["--max-num-seqs", "8"]


def test_other_packages_have_their_own_version() -> None:
    """The name under which vLLM asks for itself is the only one that is answered for."""
    assert version("tokenizers").count(".") >= 1
