"""Following against a service that answers from a list: resumed runs, silence, and the last news of a final run."""

import pytest

from client import follow as following
from client.errors import NotReachable
from client.follow import Follower, follow


class Fake:
    """Answers as a service whose run goes through ``states``; ``None`` means that nobody answers."""

    def __init__(self, states):
        self.states = list(states)
        self.now = None
        self.points = {}
        self.shown = []
        self.log = []

    def run(self, run_id):
        self.now = self.states.pop(0)
        if self.now is None:
            raise NotReachable("nobody answers")
        return {"id": run_id, "kind": "train", "step": max(self.points, default=None), "attempt": None} | self.now

    def curves(self, _run_id, *, keys, from_step):
        points = [[step, value, f"t{step}"] for step, value in sorted(self.points.items()) if step >= from_step]
        return {"curves": {keys[0]: {"points": points}}}

    def looks(self, _run_id):
        return self.shown

    def events(self, _run_id, *, after, limit):
        page = [event for event in self.log if event["seq"] > after][:limit]
        last = page[-1]["seq"] if page else after
        return {"data": page, "has_more": bool(page) and page[-1] != self.log[-1], "next": str(last)}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(following, "POLL_S", 0.0)


def attempt(number, resumed=None):
    return {"state": "running", "attempt": {"number": number, "resumed_from_step": resumed}}


def steps(news):
    return [step.number for step in news.steps]


def test_a_step_is_told_once_and_again_when_a_resume_went_back_behind_it():
    fake = Fake([attempt(1), attempt(1), attempt(2), attempt(2, 4), attempt(2, 4)])
    follower = Follower(fake, "abc")
    fake.points = dict.fromkeys(range(7), 0.5)
    assert steps(follower.ask()) == list(range(7))
    assert steps(follower.ask()) == []
    # The new attempt has taken the run, and not yet said where it begins.
    assert steps(follower.ask()) == []
    fake.points = dict.fromkeys(range(6), 0.75)
    assert steps(follower.ask()) == [5]
    fake.points[6] = 0.75
    assert steps(follower.ask()) == [6]


def test_events_are_read_over_pages_and_looks_only_when_one_happened():
    fake = Fake([{"state": "running"}] * 3)
    follower = Follower(fake, "abc")
    fake.shown = [{"id": "l1"}]
    fake.log = [{"seq": seq, "type": "checkpoint"} for seq in range(1, 251)]
    first = follower.ask()
    assert [event["seq"] for event in first.events] == list(range(1, 251))
    assert first.looks == []
    fake.log.append({"seq": 251, "type": "look"})
    assert follower.ask().looks == [{"id": "l1"}]
    fake.log.append({"seq": 252, "type": "look"})
    assert follower.ask().looks == []


def test_following_ends_with_the_final_state_and_its_last_news():
    fake = Fake([{"state": "queued"}, {"state": "running"}, {"state": "succeeded"}])
    fake.log = [{"seq": 1, "type": "state"}]
    told = list(follow(fake, "abc"))
    assert [news.run["state"] for news in told] == ["queued", "running", "succeeded"]
    assert told[-1].final
    assert not told[0].final


def test_silence_is_told_and_waited_for():
    fake = Fake([{"state": "running"}, None, None, {"state": "cancelled"}])
    told = list(follow(fake, "abc"))
    assert [news.run["state"] for news in told] == ["running", "running", "running", "cancelled"]
    assert told[1].silent_s <= told[2].silent_s
    assert told[3].silent_s == 0.0


def test_long_silence_ends_with_how_to_go_on():
    fake = Fake([{"state": "running"}, None])
    with pytest.raises(NotReachable, match="nobody answers") as caught:
        list(follow(fake, "abc", patience_s=-1.0))
    assert "driftline show abc --follow" in caught.value.hint


def test_a_service_that_never_answered_is_not_waited_for():
    with pytest.raises(NotReachable):
        next(follow(Fake([None]), "abc"))
