"""Where the frozen model rests, and that its answers are those of the model itself."""

import pytest
import torch

from core.engines.models import body_and_head
from core.train.reference import Resting, reference_logp
from core.train.update import Head, TrainSequence, build_micro_batches, score
from tests.core.train.tiny import tiny_llama

DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tied", [True, False])
def test_it_scores_as_the_model_does_and_goes_back_to_rest(device: str, tied: bool) -> None:
    where = torch.device(device)
    direct = tiny_llama(dtype=torch.float32, tied=tied).to(where)
    body, weight_VH, _ = body_and_head(direct)
    frozen = tiny_llama(dtype=torch.float32, tied=tied)
    own_body, own_VH, _ = body_and_head(frozen)
    reference = Resting(frozen, own_body, Head(own_VH, 1.0, 8), where)
    sequences = [TrainSequence((1, 2, 3), (4, 5), 1.0), TrainSequence((6,), (7, 8, 9), -1.0)]
    batches = build_micro_batches(sequences, [[0, 1]], where)
    expected = score(body, Head(weight_VH, 1.0, 8), batches)
    for _ in range(2):  # a second scoring finds it as the first did
        ((found,),) = reference_logp(reference, [batches])
        torch.testing.assert_close(found, expected[0], rtol=0, atol=0)
        assert {parameter.device.type for parameter in frozen.parameters()} == {"cpu"}
        assert not any(parameter.requires_grad for parameter in frozen.parameters())
    torch.testing.assert_close(reference.weight("model.norm.weight"), direct.get_parameter("model.norm.weight").cpu())


@pytest.mark.gpu
def test_at_rest_it_takes_nothing_of_the_card_and_is_page_locked() -> None:
    frozen = tiny_llama(dtype=torch.bfloat16)
    body, weight_VH, _ = body_and_head(frozen)
    before = torch.cuda.memory_allocated()
    reference = Resting(frozen, body, Head(weight_VH, 1.0, 8), torch.device("cuda"))
    assert all(parameter.is_pinned() for parameter in frozen.parameters())
    size = sum(parameter.nbytes for parameter in frozen.parameters())
    assert torch.cuda.memory_allocated() - before < size  # buffers alone
    with reference.at_hand():
        assert torch.cuda.memory_allocated() - before >= size
    assert all(parameter.device.type == "cpu" for parameter in frozen.parameters())
