import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.tasks.verifiers.boxed import after_thinking, last_boxed


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{5}", "5"),
        (r"first \boxed{5}, wrong, then \boxed{7}.", "7"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\left\{1, 2\right\}}", r"\left\{1, 2\right\}"),
        (r"use \boxed to answer: \boxed {8}", "8"),
        (r"\boxed{a \boxed{b} c}", r"a \boxed{b} c"),
        (r"\fbox{9}", "9"),
        (r"\boxed{}", ""),
    ],
)
def test_last_balanced_box_decides(text, content):
    box = last_boxed(text)
    assert box is not None
    assert box.content == content


@pytest.mark.parametrize("text", ["no box", r"\boxed", r"\boxed 5", r"\boxed{5", r"\boxed{1} but then \boxed{2"])
def test_no_box_or_one_that_was_cut_off_is_no_answer(text):
    assert last_boxed(text) is None


@given(st.text(alphabet="ab1{}\\ ", max_size=30), st.text(alphabet="xyz .", max_size=10))
def test_a_balanced_content_is_returned_whole(content, tail):
    depth, escaped = 0, False
    for character in content:
        if escaped:
            escaped = False
            continue
        escaped = character == "\\"
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return
    if depth or escaped:
        return
    box = last_boxed("\\boxed{" + content + "}" + tail)
    assert box is not None
    assert box.content == content


def test_thinking_is_dropped_up_to_its_last_end():
    assert after_thinking(r"<think>\boxed{1}</think> a </think>\boxed{2}") == r"\boxed{2}"
    assert after_thinking("no thinking") == "no thinking"
