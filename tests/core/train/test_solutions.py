"""Reference solutions and the noise of noisy SFT."""

from typing import Any

import pytest
import torch

from core.recipes.algorithm import Algorithm
from core.tasks.items import Item, ItemError, ItemSet
from core.train.solutions import Solutions, noise_signs, solution_text, template_of
from tests.core.engines.conftest import make_tokenizer


def item(name: str, **meta: Any) -> Item:
    return Item(name, f"{name}?", "72", "math", meta=meta)


def items(*several: Item) -> ItemSet:
    return ItemSet(several, "some", "math")


def test_what_is_learnt_is_the_solution_where_all_have_one_else_the_answer() -> None:
    assert template_of(items(item("a", solution="x"), item("b", solution="y")), None) == "{solution}"
    assert template_of(items(item("a"), item("b")), None) == "{answer}"
    assert template_of(items(item("a"), item("b")), "{code}") == "{code}"
    with pytest.raises(ItemError, match=r"1 of 2 items of some have meta\.solution and b has none"):
        template_of(items(item("a", solution="x"), item("b")), None)


def test_texts_are_put_in_and_everything_else_stays_as_it_is() -> None:
    one = item("a", solution="48 + 24 = 72")
    assert solution_text(one, "{solution}\n\\boxed{{answer}}") == "48 + 24 = 72\n\\boxed{72}"
    with pytest.raises(ItemError, match=r"item a has no text \{code\}; it has \{answer\}, \{solution\}"):
        solution_text(one, "{code}")


def test_a_solution_is_its_tokens_and_the_end_token_also_where_that_is_the_padding() -> None:
    tokenizer = make_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    ids = Solutions(tokenizer, "{answer}")(item("a"))
    assert ids[-1] == tokenizer.eos_token_id == tokenizer.pad_token_id
    assert tokenizer.decode(ids[:-1]) == "72"
    assert ids.count(tokenizer.bos_token_id) == 0


def signs(level: str, p: float, length: int, count: int) -> list[torch.Tensor]:
    algorithm = Algorithm(name="noisy_sft", noise=level, p=p)
    return noise_signs(algorithm, [length] * count, [f"i{n}" for n in range(count)], seed=1, step=2)


def test_plain_sft_has_no_noise() -> None:
    [one] = noise_signs(Algorithm(name="sft"), [3], ["a"], seed=1, step=1)
    assert one.tolist() == [1.0, 1.0, 1.0]


def test_token_noise_turns_the_sign_of_a_share_p_of_tokens() -> None:
    found = torch.stack(signs("token", 0.25, 50, 200))
    assert set(found.unique().tolist()) == {-1.0, 1.0}
    # 10,000 draws: four standard errors are 0.0173.
    assert abs(float((found < 0).double().mean()) - 0.25) < 0.0173
    assert (torch.stack(signs("token", 0.0, 50, 20)) == 1).all()
    assert (torch.stack(signs("token", 1.0, 50, 20)) == -1).all()


def test_sequence_noise_keeps_a_uniform_beginning_with_one_sign() -> None:
    found = signs("sequence", 0.25, 4, 4000)
    cuts = [int((one != 0).sum()) for one in found]
    for one, cut in zip(found, cuts, strict=True):
        assert len(set(one[:cut].tolist())) <= 1
        assert (one[cut:] == 0).all()
    # Each of the five cuts has a share of 0.2; four standard errors of 4,000 draws are 0.0253.
    for cut in range(5):
        assert abs(cuts.count(cut) / 4000 - 0.2) < 0.0253
    kept = [one for one, cut in zip(found, cuts, strict=True) if cut]
    assert abs(sum(float(one[0]) < 0 for one in kept) / len(kept) - 0.25) < 0.031


def test_the_noise_depends_on_seed_step_and_item_alone() -> None:
    algorithm = Algorithm(name="noisy_sft", p=0.5)
    [first, second] = noise_signs(algorithm, [40, 40], ["a", "b"], seed=1, step=2)
    [again] = noise_signs(algorithm, [40], ["b"], seed=1, step=2)
    [other] = noise_signs(algorithm, [40], ["b"], seed=1, step=3)
    assert torch.equal(again, second)
    assert not torch.equal(first, second)
    assert not torch.equal(other, second)
