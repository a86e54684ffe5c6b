"""Rendering of items as a recipe's prompt block says, each text once; the same ids serve training, looks and evaluations."""

from transformers import PreTrainedTokenizerBase

from core.engines.prompts import PromptSpec, RenderedPrompt, render
from core.recipes.base import Prompt
from core.tasks.items import Item


class Renderer:
    """Renders an item's prompt once through the model's template and remembers it: these ids are the prompt everywhere."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> None:
        self._tokenizer = tokenizer
        self._spec = PromptSpec(
            system=prompt.system,
            suffix=prompt.suffix,
            template_kwargs=dict(prompt.template_kwargs),
            prefill=prompt.prefill,
            stop=tuple(prompt.stop),
        )
        self._done: dict[str, RenderedPrompt] = {}

    def __call__(self, item: Item) -> RenderedPrompt:
        if item.prompt not in self._done:
            self._done[item.prompt] = render(self._tokenizer, item.prompt, self._spec)
        return self._done[item.prompt]
