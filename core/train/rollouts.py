"""One step's rollouts: sample completions of the step's prompts, grade them, and give them advantages.

Seeds are streams named by (step, prompt, sample), so a replayed step samples the same tokens. Nothing here updates weights
or writes to the store.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from core.engines.base import Completion, Engine, Request, SamplingParams
from core.engines.prompts import RenderedPrompt
from core.streams import stream_seed
from core.tasks.answers import Answer, template_opening
from core.tasks.items import Item
from core.tasks.rewards import Reward


@dataclass(frozen=True)
class Sample:
    """One graded completion. ``group`` is the prompt's place in the step, ``sample`` the completion's place in its group."""

    group: int
    sample: int
    item: Item
    prompt: RenderedPrompt
    completion: Completion
    text: str
    reward: Reward

    @property
    def truncated(self) -> bool:
        """Whether the completion ended by the length limit."""
        return self.completion.finish_reason == "length"


Grader = Callable[[Sequence[Answer]], list[Reward]]


def sample_step(
    engine: Engine,
    prompts: Sequence[tuple[Item, RenderedPrompt]],
    *,
    step: int,
    seed: int,
    num_generations: int,
    params: SamplingParams,
    decode: Callable[[Sequence[int]], str],
    grade: Grader,
) -> list[Sample]:
    """Return ``num_generations`` graded completions of each prompt, group by group.

    ``grade`` returns a reward for each answer, which is the prompt's prefill with the sampled text behind it.
    """
    places = [(group, sample) for group in range(len(prompts)) for sample in range(num_generations)]
    requests = [
        Request(prompts[group][1].token_ids, seed=stream_seed(seed, "rollout", step, prompts[group][0].id, sample))
        for group, sample in places
    ]
    completions = engine.generate(requests, params)
    texts = [decode(completion.token_ids) for completion in completions]
    answers = [
        Answer(
            item=prompts[group][0],
            prompt=prompts[group][1].text,
            text=prompts[group][1].prefill + text,
            n_tokens=len(completion.token_ids),
            opening=template_opening(prompts[group][1].text, prompts[group][1].prefill),
        )
        for (group, _), text, completion in zip(places, texts, completions, strict=True)
    ]
    rewards = grade(answers)
    return [
        Sample(group, sample, *prompts[group], completion, text, reward)
        for (group, sample), completion, text, reward in zip(places, completions, texts, rewards, strict=True)
    ]
