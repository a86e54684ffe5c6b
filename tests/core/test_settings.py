"""What the operator sets, and what is refused by the variable's name."""

from pathlib import Path

import pytest

from core.settings import Settings, SettingsError


def test_defaults_live_under_one_home(tmp_path: Path) -> None:
    settings = Settings.from_env({"DRIFTLINE_HOME": str(tmp_path)})
    assert settings.database_url == f"sqlite:///{tmp_path / 'driftline.db'}"
    assert settings.gpu == "cpu"
    assert settings.host == "127.0.0.1"
    assert settings.checkpoint_dir("ab", 2, 4) == tmp_path / "runs" / "ab" / "checkpoints" / "attempt-2-step-4"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("DRIFTLINE_DATA", "/no/such/folder", "not a folder"),
        ("DRIFTLINE_PORT", "http", "not a number"),
        ("DRIFTLINE_SWEEP_S", "-1", "positive"),
        ("DRIFTLINE_SWEEP_S", "inf", "finite"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(name: str, value: str, words: str) -> None:
    with pytest.raises(SettingsError, match=name) as refused:
        Settings.from_env({name: value})
    assert words in str(refused.value)


def test_a_lease_must_outlast_two_heartbeats() -> None:
    with pytest.raises(SettingsError, match="outlast two heartbeats"):
        Settings.from_env({"DRIFTLINE_HEARTBEAT_S": "30", "DRIFTLINE_LEASE_TTL_S": "50"})


def test_an_empty_variable_is_as_good_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("HOME", "DATABASE_URL", "BROKER_URL", "GPU", "DATA", "MODELS", "REWARDS", "HOST", "PORT", "SWEEP_S")
    assert Settings.from_env({f"DRIFTLINE_{name}": "" for name in names}) == Settings.from_env({})
    assert Settings.from_env({"DRIFTLINE_HOME": ""}).home == tmp_path / ".driftline"
