from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.tasks.verifiers.rational import Exact, exact, same_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("007", Fraction(7)),
        ("2/(-3)", Fraction(-2, 3)),
        (r"\frac{-3}{4}", Fraction(-3, 4)),
        (r"12\frac{1}{4}", Fraction(49, 4)),
        (r"-12\frac{1}{4}", Fraction(-49, 4)),
        ("3 1/2", Fraction(7, 2)),
        ("5 - 3 1/2", Fraction(3, 2)),
        ("-2^2", Fraction(-4)),
        ("2^-3", Fraction(1, 8)),
        ("2^3^2", Fraction(512)),
        ("4!", Fraction(24)),
        (r"3\times 10^{8}", Fraction(3 * 10**8)),
        ("1.5e-3", Fraction(3, 2000)),
        ("2(3)(4)", Fraction(24)),
        ("1/2/2", Fraction(1, 4)),
        (r"\frac{\frac{1}{2}}{3}", Fraction(1, 6)),
        ("- -3", Fraction(3)),
    ],
)
def test_plain_arithmetic_has_its_exact_value(text, value):
    assert exact(text) == Exact(value)


@pytest.mark.parametrize(
    "text",
    ["", "x", "3 4", "1/0", "2^(1/2)", "(-1)!", r"\sqrt{4}", "5.", "1,000", r"2\frac{3}{2}", "(1", "1)", "9^9^9", "100000000!",
     "1e99999", "(" * 500 + "1" + ")" * 500, "2^" * 400 + "2", "1" * 2000, "__import__('os')"],
)  # fmt: skip
def test_what_is_no_plain_arithmetic_or_too_large_is_left_to_others(text):
    assert exact(text) is None


@given(st.fractions(max_denominator=10**6), st.fractions(max_denominator=10**6))
def test_fractions_are_equal_exactly_when_their_values_are(left, right):
    def written(value: Fraction) -> str:
        return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"

    first, second = exact(written(left)), exact(f"{right.numerator}/{right.denominator}")
    assert first is not None
    assert second is not None
    assert same_value(first, second) == (left == right)


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("1/3", "0.333333", True),
        ("1/3", "0.33333", False),
        ("0.5", "1/2", True),
        ("1234567.0", "1234568.0", False),
        ("1234567", "1234568", False),
        ("0.0000003", "0.0000004", False),
        ("1/2^{99}", "1/2^{98}", False),
        ("1/2004!", "1/2006!", False),
        ("2.71828183", "2.718281828459", True),
        ("2.71828184", "2.718281828459", False),
        ("0", "0.0000001", False),
    ],
)
def test_only_a_decimal_may_be_a_rounding_and_only_in_its_last_place(left, right, same):
    first, second = exact(left), exact(right)
    assert first is not None
    assert second is not None
    assert same_value(first, second) is same
    assert same_value(second, first) is same
