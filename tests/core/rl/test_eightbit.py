"""Moments in eight bits: bounds of one rounding, what rounding does on average, and steps beside the exact AdamW."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.rl import eightbit
from core.rl.eightbit import BLOCK, AdamW8bit, coins, dequantize, fractions, quantize
from core.rl.optim import AdamW

DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]


def drawn(count, salt=0):
    return coins(0, count, torch.tensor(salt, dtype=torch.int64))


@pytest.mark.parametrize(("decades", "count"), [(7, 128), (8, 256)])
def test_every_code_has_its_own_fraction_and_tops_of_decades_are_exact(decades, count):
    table = fractions(decades)
    assert table.numel() == count
    assert bool((table.diff() > 0).all())
    assert table[0] == 0.0
    assert table[-1] == 1.0
    tops = torch.tensor([10.0**-power for power in range(decades)])
    assert all(bool((table == top).any()) for top in tops)


def spread(seed, count, decades):
    """Magnitudes over so many decades, one in ten 0, and none below float32's normal range."""
    generator = torch.Generator().manual_seed(seed)
    values = 10.0 ** (decades * (torch.rand(count, generator=generator) - 0.5))
    return values * (torch.rand(count, generator=generator) > 0.1)


SPREAD = {"seed": st.integers(0, 2**31), "count": st.integers(1, 600), "decades": st.floats(0, 40)}


@given(**SPREAD, signed=st.booleans())
def test_a_rounded_value_is_one_of_its_two_neighbours_in_the_table(seed, count, decades, signed):
    values = spread(seed, count, decades)
    if signed:
        values[1::2] *= -1
    found = dequantize(*quantize(values, drawn(count, seed), signed=signed))
    table = fractions(7 if signed else 8).double()
    for start in range(0, count, BLOCK):
        block, back = values[start : start + BLOCK].double(), found[start : start + BLOCK].double()
        scale = block.abs().max()
        if scale == 0:
            assert not back.any()
            continue
        part = block.abs() / scale
        upper = torch.searchsorted(table, part).clamp(1, table.numel() - 1)
        width = (table[upper] - table[upper - 1]) * scale
        # 1e-6: the table, the quotient and the product are float32.
        assert bool(((back - block).abs() <= width * (1 + 1e-6) + 1e-6 * block.abs()).all())
        assert bool((back * block >= 0).all())
        assert back[part.argmax()] == block[part.argmax()]


@given(**SPREAD)
def test_a_positive_second_moment_stays_positive(seed, count, decades):
    values = spread(seed, count, decades)
    found = dequantize(*quantize(values, drawn(count, seed), signed=False))
    assert bool(((found > 0) == (values > 0)).all())


def test_rounding_is_right_on_average():
    values = torch.linspace(-1.0, 1.0, 200)
    total = sum(dequantize(*quantize(values, drawn(200, 7919 * turn), signed=True)).double() for turn in range(400))
    # A gap is at most 0.014 wide, so a mean of 400 is off by more than 6 x 0.007 / sqrt(400) once in a billion.
    torch.testing.assert_close((total / 400).float(), values, rtol=0, atol=2.1e-3)


def test_coins_are_uniform_and_differ_between_places_and_salts():
    many = drawn(1 << 16)
    assert many.min() >= 0.0
    assert many.max() < 1.0
    counts = torch.histc(many, 64, 0.0, 1.0)
    assert float(((counts - 1024) ** 2 / 1024).sum()) < 120  # chi-square with 63 degrees: above 120 once in 10^5
    assert not torch.equal(drawn(1 << 10, 1), drawn(1 << 10, 2))
    torch.testing.assert_close(coins(100, 5, torch.tensor(3)), coins(0, 105, torch.tensor(3))[100:], rtol=0, atol=0)


def test_a_slow_average_follows_its_gradient_where_rounding_to_the_nearest_stands_still():
    def after(coin):
        moment = torch.full((BLOCK,), 0.5)
        moment[0] = 1.0  # the block's scale
        stored = quantize(moment, torch.full((BLOCK,), 0.5), signed=False)
        for turn in range(250):
            moment = 0.998 * dequantize(*stored) + 0.002 * 0.1
            moment[0] = 1.0
            stored = quantize(moment, coin(turn), signed=False)
        return float(dequantize(*stored)[1:].double().mean())

    expected = 0.1 + 0.4 * 0.998**250
    assert after(lambda turn: drawn(BLOCK, 7919 * turn)) == pytest.approx(expected, rel=0.03)
    assert after(lambda turn: torch.full((BLOCK,), 0.5)) == pytest.approx(0.5, rel=0.01)


def weights(dtype, device, shapes):
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=generator).to(device, dtype).requires_grad_()
        for name, shape in shapes.items()
    }


def walk(optimizer, count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        for parameter in optimizer.parameters.values():
            parameter.grad = (0.1 + torch.randn(parameter.shape, generator=generator)).to(parameter)
        optimizer.step(1e-2)


SHAPES = {"a": (40, 31), "b": (3,), "c": (700,)}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_walk_stays_beside_the_exact_one(device, dtype):
    exact, small = (kind(weights(dtype, device, SHAPES).items(), lr=1e-2) for kind in (AdamW, AdamW8bit))
    start = {name: value.detach().clone() for name, value in exact.masters.items()}
    walk(exact, 25)
    walk(small, 25)
    for name in SHAPES:
        moved = exact.masters[name] - start[name]
        apart = small.masters[name] - exact.masters[name]
        share = float(apart.double().norm() / moved.double().norm())
        assert 0 < share < 0.04, (name, share)


def test_no_update_is_longer_than_adams_own_bound():
    # A gradient seen once after long silence: the largest step of Adam is (1 - b1) / sqrt(1 - b2) times the rate.
    weight = torch.zeros(2 * BLOCK, requires_grad=True)
    optimizer = AdamW8bit([("w", weight)], lr=1.0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        before = weight.detach().clone()
        weight.grad = 10.0 ** (-6 * torch.rand(2 * BLOCK, generator=generator))
        optimizer.step()
        assert float((weight.detach() - before).abs().max()) < 4.0


@pytest.mark.parametrize("piece", [BLOCK, 3 * BLOCK])
def test_the_size_of_pieces_changes_nothing_but_last_bits(piece, monkeypatch):
    whole = AdamW8bit(weights(torch.float32, "cpu", SHAPES).items(), lr=1e-2)
    walk(whole, 3)
    monkeypatch.setattr(eightbit, "PIECE_ELEMENTS", piece)
    cut = AdamW8bit(weights(torch.float32, "cpu", SHAPES).items(), lr=1e-2)
    walk(cut, 3)
    for name in SHAPES:
        torch.testing.assert_close(cut.masters[name], whole.masters[name], rtol=1e-6, atol=1e-6)


def test_a_resumed_optimizer_takes_the_same_steps_bit_for_bit():
    straight = AdamW8bit(weights(torch.float32, "cpu", SHAPES).items(), lr=1e-2, weight_decay=0.1)
    walk(straight, 3)
    state = {name: value.clone() for name, value in straight.state_tensors().items()}
    middle = {name: value.detach().clone() for name, value in straight.parameters.items()}
    walk(straight, 3, seed=2)
    resumed = AdamW8bit(weights(torch.float32, "cpu", SHAPES).items(), lr=1e-2, weight_decay=0.1)
    resumed.load_masters(middle)
    resumed.load_state_tensors(state)
    walk(resumed, 3, seed=2)
    for name, value in straight.state_tensors().items():
        assert torch.equal(resumed.state_tensors()[name], value), name
    for name, value in straight.masters.items():
        assert torch.equal(resumed.masters[name], value), name


def test_the_state_takes_two_bytes_an_element_and_four_a_block():
    optimizer = AdamW8bit([("w", torch.zeros(1000, requires_grad=True))], lr=1e-2)
    held = sum(tensor.nbytes for values in optimizer.moments.values() for tensor in values.values())
    assert held == 2 * 1000 + 2 * 4 * math.ceil(1000 / BLOCK)


def test_another_optimizers_state_is_refused():
    with pytest.raises(ValueError, match="missing"):
        AdamW8bit(weights(torch.float32, "cpu", SHAPES).items(), lr=1e-2).load_state_tensors(
            AdamW(weights(torch.float32, "cpu", SHAPES).items(), lr=1e-2).state_tensors()
        )
