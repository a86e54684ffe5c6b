"""The configuration of a combined checkpoint: that of its two networks, which is one and the same, under ``text_config``.

``alpha`` is not here: it is a weight, since it may change while an engine runs. Its own ``model_type`` keeps transformers from
loading such a folder as one of its halves.
"""

from typing import Any

from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from core.engines.extrapolated_plugin import MODEL_TYPE


class ExtrapolatedConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """Wraps the configuration of the networks, given as an object or as the dictionary that ``config.json`` holds."""

    model_type = MODEL_TYPE
    sub_configs = {"text_config": AutoConfig}  # type: ignore[dict-item]  # noqa: RUF012 - as transformers' own do

    def __init__(self, text_config: PretrainedConfig | dict[str, Any] | None = None, **others: Any) -> None:
        if isinstance(text_config, dict):
            fields = dict(text_config)
            text_config = CONFIG_MAPPING[fields.pop("model_type")](**fields)
        self.text_config = text_config
        super().__init__(**others)
