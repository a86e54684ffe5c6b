import hashlib
import json

import pytest

from core.engines.prompts import PromptError, PromptSpec, render, token_ids_sha256

TURNS = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}</s>{% endfor %}"
GENERATE = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
PLAIN = TURNS + GENERATE
DEFAULT = "{% if messages[0]['role'] != 'system' %}<|system|>Be nice.</s>{% endif %}" + PLAIN
WITH_BOS = "{{ bos_token }}" + PLAIN
DEFAULT_WITH_BOS = "{{ bos_token }}" + DEFAULT
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + WITH_BOS
WOVEN = (
    "{% if messages[0]['role'] == 'system' %}{% set s = messages[0]['content'] %}{% else %}{% set s = 'Be nice.' %}"
    "{% endif %}<|user|>[{{ s }}] {{ messages[-1]['content'] }}" + GENERATE
)


def _text(tokenizer, **spec):
    return render(tokenizer, "2+2?", PromptSpec(**spec)).text


def test_null_system_leaves_the_template_its_own_default(build_tokenizer):
    tokenizer = build_tokenizer(template=DEFAULT, adds_bos=False)
    assert _text(tokenizer) == "<|system|>Be nice.</s><|user|>2+2?</s><|assistant|>"


def test_a_system_text_replaces_the_default(build_tokenizer):
    tokenizer = build_tokenizer(template=DEFAULT, adds_bos=False)
    assert _text(tokenizer, system="Brief.") == "<|system|>Brief.</s><|user|>2+2?</s><|assistant|>"


@pytest.mark.parametrize(
    ("template", "bos"),
    [(PLAIN, ""), (DEFAULT, ""), (WITH_BOS, "<s>"), (DEFAULT_WITH_BOS, "<s>"), (NO_SYSTEM, "<s>")],
)
def test_an_empty_system_text_means_no_system_message(build_tokenizer, template, bos):
    tokenizer = build_tokenizer(template=template, adds_bos=False)
    assert _text(tokenizer, system="") == f"{bos}<|user|>2+2?</s><|assistant|>"


def test_a_default_that_cannot_be_separated_is_refused(build_tokenizer):
    with pytest.raises(PromptError, match=r"prompt.system is \"\""):
        _text(build_tokenizer(template=WOVEN), system="")


def test_a_template_that_refuses_a_system_message_is_named(build_tokenizer):
    with pytest.raises(PromptError, match="refuses a system and user message: no system role"):
        _text(build_tokenizer(template=NO_SYSTEM), system="Brief.")


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("template", [PLAIN, WITH_BOS, "{{ bos_token }}" + WITH_BOS, DEFAULT_WITH_BOS, None])
def test_there_is_never_more_than_one_bos(build_tokenizer, template, adds_bos):
    prompt = render(build_tokenizer(template=template, adds_bos=adds_bos), "2+2?", PromptSpec())
    expected = 1 if adds_bos or "bos_token" in (template or "") else 0
    assert prompt.token_ids.count(1) == expected
    assert prompt.token_ids[:1] == (1,) or expected == 0
    assert prompt.text.count("<s>") == expected


def test_the_ids_decode_to_the_text(build_tokenizer):
    tokenizer = build_tokenizer(template=DEFAULT_WITH_BOS)
    prompt = render(tokenizer, "a b\nc", PromptSpec(system="", suffix=" d", prefill="<|user|>x"))
    assert tokenizer.decode(prompt.token_ids, skip_special_tokens=False) == prompt.text


def test_suffix_follows_the_item_and_prefill_the_generation_prompt(build_tokenizer):
    tokenizer = build_tokenizer(template=PLAIN, adds_bos=False)
    assert _text(tokenizer, suffix=" Think.", prefill="Sure:") == "<|user|>2+2? Think.</s><|assistant|>Sure:"
    rendered = render(tokenizer, "2+2?", PromptSpec(prefill="Sure:"))
    assert (rendered.prefill, render(tokenizer, "2+2?", PromptSpec()).prefill) == ("Sure:", "")
    assert rendered.text.endswith(rendered.prefill)


def test_template_arguments_reach_the_template(build_tokenizer):
    tokenizer = build_tokenizer(template=PLAIN + "{% if mode %}[{{ mode }}]{% endif %}", adds_bos=False)
    assert _text(tokenizer, template_kwargs={"mode": "deep"}) == "<|user|>2+2?</s><|assistant|>[deep]"
    assert _text(tokenizer) == "<|user|>2+2?</s><|assistant|>"


def test_without_a_template_the_prompt_is_plain_text(build_tokenizer):
    tokenizer = build_tokenizer()
    assert _text(tokenizer, suffix=" ok", prefill="!") == "<s>2+2? ok!"
    assert _text(tokenizer, system="Sum:") == "<s>Sum:\n\n2+2?"
    with pytest.raises(PromptError, match="template_kwargs sets mode"):
        _text(tokenizer, template_kwargs={"mode": "deep"})


def test_an_empty_prompt_is_refused(build_tokenizer):
    with pytest.raises(PromptError, match="empty"):
        render(build_tokenizer(adds_bos=False), "", PromptSpec())


def test_the_hash_is_that_of_the_ids(build_tokenizer):
    tokenizer = build_tokenizer(template=PLAIN)
    prompt = render(tokenizer, "2+2?", PromptSpec())
    payload = b"driftline/prompt/1\n" + json.dumps(list(prompt.token_ids)).replace(" ", "").encode()
    assert prompt.sha256 == hashlib.sha256(payload).hexdigest() == token_ids_sha256(prompt.token_ids)
    assert prompt.sha256 != render(tokenizer, "2+3?", PromptSpec()).sha256
    assert token_ids_sha256([1, 23]) != token_ids_sha256([12, 3])
