"""What Driftline adds to vLLM: one architecture, found by vLLM itself through the entry point ``vllm.general_plugins``.

vLLM's workers are processes of their own and each calls :func:`register` before it reads a model's configuration, so a
combined checkpoint (:mod:`core.engines.extrapolated_folder`) can be served by any vLLM beside which Driftline is installed,
``vllm serve`` included. Importing this module costs nothing and needs no vLLM; the model class is imported by vLLM when such
a checkpoint is loaded.
"""

ARCHITECTURE = "DriftlineExtrapolatedForCausalLM"
MODEL_TYPE = "driftline_extrapolated"


def register() -> None:
    """Tell vLLM and transformers of the architecture; calling it again changes nothing. Called by vLLM, which is there then."""
    from transformers import AutoConfig
    from vllm import ModelRegistry

    from core.engines.extrapolated_config import ExtrapolatedConfig

    AutoConfig.register(MODEL_TYPE, ExtrapolatedConfig, exist_ok=True)
    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, "core.engines.extrapolated_vllm:ExtrapolatedForCausalLM")
