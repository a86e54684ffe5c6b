"""The random name of a home folder."""

import re
from concurrent.futures import ThreadPoolExecutor

from core.home import home_id, read_home_id


def test_the_first_call_makes_it_and_later_ones_keep_it(tmp_path):
    home = tmp_path / "not" / "yet"
    assert read_home_id(home) is None
    made = home_id(home)
    assert re.fullmatch(r"[0-9a-f]{32}", made)
    assert home_id(home) == read_home_id(home) == made
    assert [path.name for path in home.iterdir()] == ["home_id"]


def test_two_homes_differ(tmp_path):
    assert home_id(tmp_path / "one") != home_id(tmp_path / "two")


def test_calls_at_once_agree_on_one(tmp_path):
    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(home_id, [tmp_path] * 64))) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["home_id"]
