"""The e-process against its formula in plain floats, and the property that makes it valid."""

import itertools
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.damage.eprocess import BETS, EProcess, largest_margin_rejected
from core.damage.eprocess import log_process as log_steps
from core.damage.observations import Observation, RuleError

# No deadline: how long an example takes says nothing on a busy machine.
STEADY = settings(deadline=None, max_examples=50)

SCORES = st.sampled_from([0.0, 0.5, 1.0])


def log_process(*looks):
    return list(log_steps(*looks))


def observations(pairs):
    return [Observation(f"i{k:03d}", b, c) for k, (b, c) in enumerate(pairs)]


def plain_m(looks_of_d, planned, margin):
    """M_t by the formula as it is written, in plain products."""
    q = dict.fromkeys(BETS, 0.0)
    path = []
    for t, ds in enumerate(looks_of_d, start=1):
        weight = 1.0 / planned if t <= planned else 0.0
        for bet in BETS:
            e = 1.0
            for d in ds:
                e *= 1.0 + bet / (1.0 + margin) * (d - margin)
            q[bet] = (q[bet] + weight) * e
        spent = sum(1.0 / planned for s in range(1, t + 1) if s <= planned)
        path.append(1.0 - spent + sum(q.values()) / len(q))
    return path


def run(rule, looks, state=None):
    decisions, state = [], state or {}
    for look in looks:
        decisions.append(rule.look(state, look))
        state = decisions[-1].state
    return decisions


looks_strategy = st.lists(st.lists(st.tuples(SCORES, SCORES), min_size=6, max_size=6), min_size=1, max_size=5)


def test_the_grid_is_the_specified_one():
    assert BETS == (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def test_one_item_lost_at_the_only_look_by_hand():
    """T = 1, margin 0: M_1 is the mean over bets of 1 + l, and the bets' mean is 4.7/11."""
    decision = EProcess(1, 1, 1, margin=0.0).look({}, observations([(1, 0)]))
    assert decision.statistic == pytest.approx(1 + 4.7 / 11, rel=1e-13)


@STEADY
@given(looks_strategy, st.sampled_from([0.0, 0.01, 0.1]))
def test_it_equals_the_formula_in_plain_floats(looks, margin):
    """T is 3, so longer runs also cover looks without weight."""
    rule = EProcess(n_pool=6, m=6, looks=3, margin=margin)
    got = [decision.statistic for decision in run(rule, [observations(look) for look in looks])]
    expected = plain_m([[b - c for b, c in look] for look in looks], 3, margin)
    assert got == pytest.approx(expected, rel=1e-11, abs=1e-14)


@pytest.mark.parametrize(
    "pool", [[1, -1, 0, 0, 0], [1, 0, 0, -0.5, -0.5], [1, 1, -1, -1, 0], [0, 0, 0, 0, 0], [-1] * 5]
)
@pytest.mark.parametrize("m", [1, 2, 4])
def test_without_damage_the_expected_next_value_is_never_larger(pool, m):
    """All draws of two looks are enumerated: the mean over the second draw never exceeds M_1, nor that over the first 1."""
    draws = list(itertools.combinations(pool, m))
    first = [plain_m([draw], 3, 0.01)[-1] for draw in draws]
    assert math.exp(log_process([[(0.0, m)]], 3, 0.01)[0]) == pytest.approx(plain_m([[0] * m], 3, 0.01)[0])
    assert sum(first) / len(first) <= 1 + 1e-12
    for one, m1 in zip(draws, first, strict=True):
        seconds = [math.exp(log_process([[(d, 1) for d in one], [(d, 1) for d in two]], 3, 0.01)[-1]) for two in draws]
        assert sum(seconds) / len(seconds) <= m1 + 1e-12


def test_with_damage_beyond_the_margin_the_expected_value_grows():
    draws = list(itertools.combinations([1, 1, 0, 0, 0], 2))
    values = [math.exp(log_process([[(d, 1) for d in draw]], 3, 0.01)[0]) for draw in draws]
    assert sum(values) / len(values) > 1.01


def test_the_pool_at_exactly_the_margin_keeps_the_mean_at_or_below_one():
    """Mean d of 0.25 against a margin of 0.25: the boundary of the hypothesis."""
    draws = list(itertools.combinations([1, 0, 0, 0], 2))
    values = [math.exp(log_process([[(d, 1) for d in draw]], 2, 0.25)[0]) for draw in draws]
    assert 0.9 < sum(values) / len(values) <= 1 + 1e-12


@STEADY
@given(looks_strategy, st.randoms(use_true_random=False))
def test_the_order_of_observations_does_not_matter(looks, random):
    rule = EProcess(6, 6, 5)
    plain = run(rule, [observations(look) for look in looks])
    shuffled = [random.sample(observations(look), 6) for look in looks]
    assert run(rule, shuffled) == plain


@STEADY
@given(looks_strategy, st.data())
def test_losing_one_more_item_never_lowers_the_evidence(looks, data):
    rule = EProcess(6, 6, 5)
    spot = data.draw(st.integers(0, len(looks) - 1)), data.draw(st.integers(0, 5))
    worse = [list(look) for look in looks]
    worse[spot[0]][spot[1]] = (worse[spot[0]][spot[1]][0], 0.0)
    before = run(rule, [observations(look) for look in looks])
    after = run(rule, [observations(look) for look in worse])
    assert all(a.log_statistic >= b.log_statistic - 1e-12 for a, b in zip(after, before, strict=True))
    assert (after[-1].margin_rejected or 0) >= (before[-1].margin_rejected or 0)


@STEADY
@given(looks_strategy, st.integers(0, 5))
def test_a_state_that_went_through_json_resumes_identically(looks, cut):
    rule = EProcess(6, 6, 5)
    every = [observations(look) for look in looks]
    whole = run(rule, every)
    head = run(rule, every[:cut])
    state = json.loads(json.dumps(head[-1].state, allow_nan=False)) if head else {}
    assert head + run(rule, every[cut:], state) == whole


def test_it_stops_at_one_over_alpha_and_the_decision_stays():
    rule = EProcess(n_pool=80, m=16, looks=3)
    ruined = observations([(1, 0)] * 6 + [(0, 0)] * 10)
    healed = observations([(0, 1)] * 10 + [(0, 0)] * 6)
    one, two, three = run(rule, [ruined, ruined, healed])
    assert (one.decided, two.decided, two.crossed) == (False, True, True)
    assert two.statistic >= two.threshold == 20.0
    assert three.decided
    assert not three.crossed
    assert three.state["decided_at"] == 2


def test_watch_begins_at_five():
    rule = EProcess(n_pool=80, m=16, looks=3)
    ds = [plain_m([[1] * k + [0] * (16 - k)], 3, 0.01)[0] for k in range(17)]
    for k, m1 in enumerate(ds):
        decision = rule.look({}, observations([(1, 0)] * k + [(1, 1)] * (16 - k)))
        assert decision.watch == decision.state["watch"] == (m1 >= 5)
        assert decision.decided == (m1 >= 20)


def test_the_rejected_margin_is_the_largest_one_whose_own_process_crossed():
    histograms = [[(-1.0, 5), (0.0, 175), (1.0, 20)], [(-1.0, 4), (0.0, 170), (1.0, 26)]]
    looks = [[d for d, count in look for _ in range(count)] for look in histograms]
    by_scan = max(k for k in range(1000) if max(plain_m(looks, 30, k / 1000)) >= 20)
    assert largest_margin_rejected(histograms, 30, 0.05) == by_scan / 1000
    assert 0 < by_scan < 90


def test_a_bound_once_earned_is_not_lost_when_the_run_recovers():
    rule = EProcess(80, 16, 3)
    ruined = observations([(1, 0)] * 12 + [(0, 0)] * 4)
    one, two = run(rule, [ruined, observations([(0, 1)] * 16)])
    assert two.margin_rejected == one.margin_rejected > 0


def test_no_margin_is_rejected_without_evidence():
    assert EProcess(80, 16, 3).look({}, observations([(1, 1)] * 16)).margin_rejected is None


def test_a_huge_statistic_stays_a_finite_number():
    looks = [observations([(1, 0)] * 200)] * 8
    last = run(EProcess(1000, 200, 30), looks)[-1]
    assert last.statistic == 1e300
    assert last.log_statistic > math.log(1e300)
    json.dumps(last.state, allow_nan=False)


def test_an_infrastructure_failure_counts_as_unchanged_and_is_reported():
    rule = EProcess(80, 16, 3)
    failed = [*observations([(1, 0)] * 3 + [(1, 1)] * 12), Observation("x", 1.0, 0.0, infra=True)]
    decision = rule.look({}, failed)
    assert decision == rule.look({}, failed)
    assert decision.tally.lost == 3
    assert decision.tally.infra == decision.state["infra"] == 1
    assert decision.statistic == rule.look({}, observations([(1, 0)] * 3 + [(1, 1)] * 13)).statistic


def test_a_rule_frozen_with_refuse_asks_for_a_re_run():
    with pytest.raises(RuleError, match="Re-run"):
        EProcess(80, 2, 3, infra_failures="refuse").look(
            {}, [Observation("a", 1, 1), Observation("b", 1, 0, infra=True)]
        )


@pytest.mark.parametrize("change", [{"looks": 4}, {"m": 15}, {"margin": 0.02}, {"alpha": 0.1}])
def test_a_rule_that_changed_after_the_start_is_refused(change):
    state = EProcess(80, 16, 3).look({}, observations([(1, 1)] * 16)).state
    with pytest.raises(RuleError, match="never changes") as caught:
        EProcess(**{"n_pool": 80, "m": 16, "looks": 3, **change}).look(state, observations([(1, 1)] * 16))
    assert caught.value.param == f"damage_stop.{next(iter(change))}"


@pytest.mark.parametrize("bad", [[(1, 0)] * 15, [(1, 0)] * 17, [(1, 2)] * 16, [(float("nan"), 0)] * 16])
def test_observations_that_do_not_fit_are_refused(bad):
    with pytest.raises(RuleError):
        EProcess(80, 16, 3).look({}, observations(bad))


def test_an_item_given_twice_is_refused():
    with pytest.raises(RuleError, match="twice"):
        EProcess(80, 2, 3).look({}, [Observation("a", 1, 1), Observation("a", 1, 0)])


@STEADY
@given(st.integers(1, 40), st.integers(1, 30))
def test_the_earliest_stop_is_the_first_look_of_a_run_that_loses_everything(m, planned):
    rule = EProcess(n_pool=m, m=m, looks=planned)
    path = plain_m([[1] * m] * planned, planned, 0.01)
    assert rule.earliest_stop() == next((t for t, value in enumerate(path, start=1) if value >= 20), None)


def test_a_base_that_answers_nothing_can_never_be_damaged():
    assert EProcess(80, 16, 3).earliest_stop(0) is None
