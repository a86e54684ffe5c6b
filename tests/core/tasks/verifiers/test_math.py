"""The kinds of answers that public graders get wrong, in instances of our own, and the extraction rules."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.tasks.items import Item
from core.tasks.verifiers import Outcome, math


def judged(gold: str, text: str, **options) -> Outcome:
    return math.grade(Item("i", "p", gold, "math"), text, **options).verdict


EQUAL = [
    ("-1", r"e^{i\pi}"),
    ("1", r"e^{2 \pi i}"),
    (r"\log_{10} 2", r"\log 2"),
    ("3/5", r"\frac{3}{5}"),
    (r"\frac{3}{4}", "0.75"),
    ("(2, \\frac{7}{2})", "(2, 3.5)"),
    (r"\frac{y-3}{5}", r"\frac{y}{5} - \frac{3}{5}"),
    (r"\cot^2(t)+1", r"\csc^2(t)"),
    (r"\sin 2x", r"2\sin x \cos x"),
    (r"(\begin{pmatrix}1&-2\\\frac{1}{2}&4\\\end{pmatrix})", r"\begin{bmatrix} 1 & -2 \\ 0.5 & 4 \end{bmatrix}"),
    ("2x+3y-7=0", "-2x-3y+7=0"),
    ("y=2x+3", "y-2x=3"),
    ("y=2x+3", "2x+3"),
    ("17", r"\text{17}"),
    ("8", "008"),
    ("271.5", r"271\frac{1}{2}"),
    ("even", r"\text{Even}"),
    (r"25\%", "25"),
    (r"25\%", "0.25"),
    (r"\frac{\sqrt{5}}{5}", r"\frac{\sqrt5}{5} \approx 0.447"),
    ("312_{6}", "312_6"),
    ("312_6", "312"),
    ("3,-4", "-4,3"),
    ("3,-4", r"x=3 \text{ or } x=-4"),
    ("48", r"48\text{ cubic inches}"),
    ("48", "48 apples"),
    (r"8\pi", r"8\pi\text{ cm}^2"),
    (r"5\text{ cm}", "5 centimeters"),
    (r"135^\circ", "135"),
    ("2000", "2,000"),
    ("23{,}456", "23,456"),
    (r"70\,000", "70000"),
    (r"\$18.90", "18.9"),
    ("x=9", "9"),
    ("7", "5+2=7"),
    (r"\pm 3", "3, -3"),
    (r"1\pm\sqrt{2}", r"1-\sqrt2, 1+\sqrt2"),
    (r"(-\infty, 4)", "x<4"),
    ("[1,2]", r"1 \le x \le 2"),
    (r"(-\infty,1]\cup[2,\infty)", r"[2,\infty) \cup (-\infty, 1]"),
    (r"\{1,2\}", "2, 1"),
    (r"\sqrt{2}", "2^{1/2}"),
    (r"\frac{1}{1+\sqrt{2}}", r"\sqrt{2}-1"),
    (r"-1+i\sqrt{3}", r"i\sqrt{3}-1"),
    ("e^2", r"\mathrm{e}^{2}"),
    (r"\binom{5}{2}", "10"),
    (r"\frac{\pi}{2}", "1.5707963"),
    ("(C)", r"\textbf{(C)}"),
    (r"3.2\times 10^{5}", "320000"),
    ("1,2,3", "3, 2, and 1"),
    ("-5", "\N{MINUS SIGN}5"),
    ("6:45", "6:45"),
]  # fmt: skip

DIFFERENT = [
    ("-1", r"e^{i\pi/2}"),
    ("x", "ix"),
    (r"\log 2", r"\ln 2"),
    (r"\frac{1}{1999!}", r"\frac{1}{2001!}"),
    (r"\frac{1}{3^{80}}", r"\frac{1}{3^{79}}"),
    ("0.0000005", "0.0000006"),
    (r"e^{-100}", "0"),
    ("m=1, 2, 3", "m=0, 1, 2"),
    ("E = (0, 2)", "E = (0, 2.5)"),
    ("7, 8, and 9", "1, 2, and 9"),
    (r"2 - \frac{1}{\mathrm{e}}", r"2 + \frac{1}{\mathrm{e}}"),
    (r"\frac{1}{\mathrm{e}}", r"\frac{1}{\mathrm{e}^3}"),
    (r"\pm 12", "12"),
    ("11:00", "1:00"),
    (r"1, 3, \ldots, n", r"2, 4, \ldots, 2n"),
    (r"a_n = \sum_{k=0}^{n} a_k", r"a_n = \sum_{k=1}^{n} a_k"),
    ("2x+3y-7=0", "2x+3y-8=0"),
    ("5 and 6", "6"),
    (r"\sqrt{3},-\sqrt{7}", r"\sqrt{3}"),
    ("even", r"\text{evenn}"),
    ("odd", "dod"),
    ("x^2+1", "y^2+1"),
    ("x^2", "X^2"),
    ("[0,5)", "(0,5)"),
    ("(0,5)", "[0,5]"),
    ("(4,2)", r"\{2,4\}"),
    ("(1,2)", "1,2"),
    ("B", "A, B or C"),
    ("B", "b"),
    ("5", "5 or 6"),
    ("5", r"\text{either 5 or 7}"),
    ("5", "5=6"),
    ("5", "not 5"),
    (r"\pi", "3.14"),
    (r"\pi", "22/7"),
    ("1000000", "1000001"),
    ("4210", "4210_5"),
    ("4210_5", "4210_6"),
    (r"5\text{ m}", "5 cm"),
    ("23", "2 3"),
    ("11/2", "1 1/2"),
    ("x>5", "y>5"),
    ("x=5", "y=5"),
    ("y=x", "y=2x"),
    (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    (r"\infty", r"-\infty"),
    (r"\text{no solution}", "0"),
    (r"\emptyset", "0"),
    ("5", r"4 \approx 5"),
    ("2:3", "3:2"),
    ("1", "__import__('os').system('true')"),
    ("0.5", "0.50001"),
    (r"10\%", "0.01"),
    ("(1,2)", "(1,2,3)"),
    (r"\{1,2,3\}", r"\{1,2,2\}"),
    ("6", "3!!"),
    (r"\sqrt[3]{8}", r"\sqrt{8}"),
    ("2^{10}", "2^1 0"),
    ("3", "-(-(-3))"),
    (r"\text{yes}", r"\text{yes, no}"),
    (r"\sqrt{x^2}", "x"),
    (r"\lfloor 2.5 \rfloor", "2.5"),
    ("x=3", "x=3, y=4"),
    ("7", r"7 \text{ is not it}"),
    (r"\infty", r"\frac{1}{0}"),
    ("0", r"\frac{0}{0}"),
    ("1", "0^0^0"),
    ("i", "-i"),
    (r"\pm i", "i"),
    (r"12 \text{ cm}", r"12 \text{ cm}^2"),
    ("10^{-10}", "0"),
    ("123456789012345678901", "123456789012345678902"),
    (r"x\ge 2", "x>2"),
    (r"\emptyset", r"\{\emptyset\}"),
    ("2n", "2n+0.000001"),
    ("4", "2+2=4=5"),
    ("D", r"\text{A, B, C, D}"),
    ("1", r"\text{one or two}"),
    (r"\overline{AB}", r"\overline{CD}"),
    ("3", "3i^2"),
    ("1", "{@,1-3-10 5 _X_}"),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_the_same_value_in_another_spelling_is_correct(gold, answer):
    assert judged(gold, rf"So it is $\boxed{{{answer}}}$.") == Outcome.CORRECT


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_another_value_is_wrong_however_close_it_looks(gold, answer):
    assert judged(gold, rf"So it is \boxed{{{answer}}}.") == Outcome.WRONG


@pytest.mark.parametrize("gold", sorted({gold for gold, _ in EQUAL + DIFFERENT}))
def test_every_reference_verifies_against_itself(gold):
    assert judged(gold, rf"\boxed{{{gold}}}") == Outcome.CORRECT


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{5} is wrong, \boxed{7}", "7"),
        (r"<think>\boxed{5}</think> \boxed{7}", "7"),
        ("<think>the answer is 5</think> The answer is 7.", "7"),
        ("The answer is 0.5", "0.5"),
        ("The answer is 5. Therefore 6 is not.", "5"),
        ("**Final answer:** 5", "5"),
        ("the answer is 4. No: the answer is 5", "5"),
        ("work\n#### 72", "72"),
        ("<answer> 8 </answer>", "8"),
        (r"sum is \(\boxed{70}\).</answer>", "70"),
        ("cut off", None),
        (r"The answer is 5, so \boxed{5", None),
        ("", None),
        (r"\boxed{ }", None),
    ],
)
def test_one_place_decides(text, answer):
    assert math.extract(text) == answer


def test_boxed_only_does_not_read_sentences():
    assert judged("5", "The answer is 5.", boxed_only=True) == Outcome.NO_ANSWER
    assert judged("5", r"The answer is \boxed{5}.", boxed_only=True) == Outcome.CORRECT


def test_no_answer_is_not_wrong_and_two_unreadable_texts_are_not_equal():
    assert judged("42", "an unfinished thought") == Outcome.NO_ANSWER
    assert judged("@@@", r"\boxed{###}") == Outcome.WRONG
    assert not math.equal("", "")


def test_a_longer_box_than_any_answer_is_wrong_without_being_parsed():
    judgement = math.grade(Item("i", "p", "5", "math"), r"\boxed{" + "1+" * 5000 + "1}")
    assert judgement.verdict == Outcome.WRONG
    assert "longer" in judgement.reason


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_integers_are_equal_exactly_when_they_are(left, right):
    assert math.equal(str(left), f"{right:,}") == (left == right)
    assert math.equal(str(left), f"{left:,}")


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet=r"01xe+-*/^(){}[],.\frac sqrt&=<>|:_%", max_size=24))
def test_no_text_makes_normalising_and_splitting_fail(text):
    from core.tasks.verifiers.answers import structure
    from core.tasks.verifiers.latex_text import normalise, squashed

    once = normalise(text)
    structure(once)
    assert squashed(once) is not None


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("71", "59 - 10 + 22"),
        ("12", "7+5"),
        ("12", "(7+5)"),
        ("30", r"2 \times 3 \cdot 5"),
        ("1.5", "1 + 0.5"),
        ("12", "7 - (-5)"),
    ],
)
def test_repeating_the_questions_arithmetic_is_no_answer_to_it(gold, answer):
    judgement = math.grade(Item("i", "p", gold, "math"), rf"\boxed{{{answer}}}")
    assert judgement.verdict is Outcome.WRONG
    assert judgement.reason == "its arithmetic is left undone"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("8", "3+5=8"),
        ("2000", r"2 \times 10^{3}"),
        ("0.5", "1/2"),
        ("1024", "2^{10}"),
        ("1+\\sqrt{2}", "1+\\sqrt{2}"),
        ("-5", "-5"),
    ],
)
def test_arithmetic_that_is_done_or_is_the_usual_form_of_a_number_still_counts(gold, answer):
    assert judged(gold, rf"\boxed{{{answer}}}") is Outcome.CORRECT
