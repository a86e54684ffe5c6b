"""Every instruction has an answer that follows it and one that does not; verdicts repeat; unknown ids are refused."""

import json
import sys

import nltk
import pytest

from core.tasks.item_tests import verifier_of
from core.tasks.items import Item, ItemError
from core.tasks.sources import parse_item
from core.tasks.verifiers import Outcome, instructions
from tests.core.tasks.verifiers.instruction_cases import CASES


def item(kind, *pairs, prompt="p") -> Item:
    ids, kwargs = [identifier for identifier, _ in pairs], [arguments for _, arguments in pairs]
    return Item("i", prompt, None, "instructions", tests={"type": kind, "instruction_id_list": ids, "kwargs": kwargs})


@pytest.fixture(scope="module")
def tagger(tmp_path_factory):
    """Part-of-speech data in nltk's own format that knows two words: the real one is the operator's to install."""
    name = "averaged_perceptron_tagger_eng"
    folder = tmp_path_factory.mktemp("nltk_data")
    files = folder / "taggers" / name
    files.mkdir(parents=True)
    contents = {"weights": {}, "tagdict": {"Run": "VB", "Dogs": "NNS"}, "classes": ["NN", "NNS", "VB"]}
    for part, content in contents.items():
        (files / f"{name}.{part}.json").write_text(json.dumps(content))
    nltk.data.path.insert(0, str(folder))
    yield
    nltk.data.path.remove(str(folder))


@pytest.mark.parametrize("kind", instructions.KINDS)
def test_there_is_a_case_for_every_instruction(kind):
    assert set(CASES[kind]) == set(instructions.registry(kind))


@pytest.mark.usefixtures("tagger")
@pytest.mark.parametrize(("kind", "identifier"), [(kind, one) for kind, cases in CASES.items() for one in cases])
def test_one_answer_follows_the_instruction_and_one_does_not(kind, identifier):
    arguments, follows, does_not = CASES[kind][identifier]
    asked = item(kind, (identifier, arguments), prompt=arguments.get("prompt_to_repeat", "p"))
    assert verifier_of(asked.tests, where="here") == "instructions"
    assert instructions.grade(asked, follows).verdict == Outcome.CORRECT
    judgement = instructions.grade(asked, does_not)
    assert judgement.verdict == Outcome.WRONG
    assert identifier in judgement.reason


def test_every_instruction_must_be_followed_and_the_shares_are_details():
    asked = item("ifeval", ("punctuation:no_comma", {}), ("startend:quotation", {}))
    assert instructions.grade(asked, '"It rains."').details == {
        "strict": 1.0, "loose": 1.0, "instructions_strict": 1.0, "instructions_loose": 1.0,
    }  # fmt: skip
    half = instructions.grade(asked, "It rains.")
    assert (half.verdict, half.details["instructions_strict"]) == (Outcome.WRONG, 0.5)
    assert half.reason == "1 of 2 instructions followed (1 in the loose reading), missed: startend:quotation"


def test_the_loose_reading_is_told_and_does_not_decide():
    judgement = instructions.grade(item("ifeval", ("startend:quotation", {})), 'Here you are:\n"It rains."')
    assert judgement.verdict == Outcome.WRONG
    assert (judgement.details["strict"], judgement.details["loose"]) == (0.0, 1.0)


def test_what_is_thought_does_not_count_and_an_empty_answer_is_none():
    asked = item("ifeval", ("punctuation:no_comma", {}))
    assert instructions.grade(asked, "<think>a, b</think>It rains.").verdict == Outcome.CORRECT
    assert instructions.grade(asked, "<think>a</think>x</think> It rains, yes.").verdict == Outcome.WRONG
    assert instructions.grade(asked, "<think>a b</think>\n ").verdict == Outcome.NO_ANSWER


def test_language_detection_gives_the_same_verdict_every_time():
    import langdetect

    short = "rain gris vent"  # several languages are about equally likely
    asked = item("ifeval", ("language:response_language", {"language": "fr"}))
    verdicts = set()
    for noise in range(12):
        langdetect.DetectorFactory.seed = noise
        verdicts.add(instructions.grade(asked, short).verdict)
    assert len(verdicts) == 1


@pytest.mark.parametrize(
    ("tests", "told"),
    [
        (
            {"instruction_id_list": ["punctuation:no_dots"], "kwargs": [{}]},
            r"list\[0\]'.*no instruction 'punctuation:no_dots'; allowed",
        ),
        ({"instruction_id_list": ["count:numbers"], "kwargs": [{"N": 1}]}, "ifeval has no instruction 'count:numbers'"),
        ({"instruction_id_list": [], "kwargs": []}, "at least one instruction id"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": []}, "a list of 1 objects"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{"dots": 3}]}, r"kwargs\[0\]'.*does not take"),
        ({"instruction_id_list": ["keywords:frequency"], "kwargs": [{"relation": "about"}]}, r"kwargs\[0\]'"),
    ],
)
def test_what_could_not_be_graded_is_refused_when_items_are_read(tests, told):
    row = {"id": "a", "prompt": "p", "tests": {"type": "ifeval", **tests}}
    with pytest.raises(ItemError, match=told) as refused:
        parse_item(json.dumps(row), where="mine.jsonl line 3")
    assert str(refused.value).startswith("mine.jsonl line 3: field 'tests.")


def test_missing_language_data_is_no_verdict_and_names_what_is_missing(monkeypatch):
    monkeypatch.setattr(nltk, "pos_tag", lambda _words: nltk.data.find("taggers/a_tagger_that_nobody_has"))
    judgement = instructions.grade(item("ifbench", ("words:start_verb", {})), "Run home.")
    assert judgement.verdict == Outcome.INFRA_ERROR
    assert "NLTK_DATA" in judgement.reason
    assert "a_tagger_that_nobody_has" in judgement.reason


def test_the_package_is_loaded_without_the_hub():
    instructions.registry("ifeval")
    assert "if_verifiable.api" not in sys.modules
