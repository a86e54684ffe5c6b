"""What other trainers call things: names of TRL, verl, OpenRLHF and transformers, and what to write here instead.

Only hints: no foreign name is ever accepted, because a silently translated experiment is another experiment.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Foreign:
    """``field`` is the dotted place here, or "" when nothing corresponds; ``note`` says what differs."""

    field: str
    note: str = ""


def _same(field: str, *names: str, note: str = "") -> dict[str, Foreign]:
    return {name: Foreign(field, note) for name in names}


_UPDATES = "an update is one optimizer step; count prompts, not samples"
_CLIP = "the two sides are named apart: [1 - clip_low, 1 + clip_high]"
_ACCUMULATION = "not needed: micro-batches follow from micro_batch_tokens and never change the result"
_FULL = "training rollouts sample from the full distribution at `temperature`; top_p and top_k would falsify log-probabilities"

_SECTIONS = ("trainer", "actor_rollout_ref", "critic", "reward_model", "training_args")

FOREIGN_NAMES: dict[str, Foreign] = {
    **_same("learning_rate", "lr", "actor_learning_rate", "actor_lr"),
    **_same("lr_schedule", "lr_scheduler_type", "lr_scheduler", "lr_warmup_style", "scheduler"),
    **_same("warmup_updates", "warmup_steps", "lr_warmup_steps", "num_warmup_steps", note=_UPDATES),
    **_same("warmup_updates", "warmup_ratio", "lr_warmup_steps_ratio", note="give a number of updates, not a share"),
    **_same("adam_beta1", "beta1"),
    **_same("adam_beta2", "beta2"),
    **_same("adam_beta1", "betas", note="and adam_beta2"),
    **_same("adam_eps", "adam_epsilon"),
    **_same("max_grad_norm", "grad_clip", "clip_grad", "gradient_clipping", "max_norm"),
    **_same("optimizer", "optim", "optimizer_name", "optimizer_type"),
    **_same("model", "model_name", "model_name_or_path", "model_path", "pretrain", "policy", "actor"),
    **_same("algorithm", "algo", "adv_estimator", "advantage_estimator"),
    **_same("algorithm", "importance_sampling_level", note="gspo weighs whole sequences, grpo tokens"),
    **_same(
        "algorithm.std",
        "scale_rewards",
        "norm_adv_by_std_in_grpo",
        "normalize_advantages",
        note="sample, population or none",
    ),
    **_same("algorithm.aggregation", "loss_type", "loss_agg_mode", note="or a preset name: dr_grpo, dapo"),
    **_same("algorithm.kl.coef", "beta", "kl_coef", "kl_loss_coef", "init_kl_coef", "use_kl_loss", "kl_penalty_coef"),
    **_same("algorithm.kl.estimator", "kl_loss_type", "kl_estimator", "kl_penalty"),
    **_same("algorithm.kl.in_reward", "use_kl_in_reward"),
    **_same(
        "algorithm.clip_low",
        "epsilon",
        "epsilon_low",
        "clip_ratio",
        "clip_ratio_low",
        "cliprange",
        "eps_clip",
        note=f"and algorithm.clip_high; {_CLIP}",
    ),
    **_same("algorithm.clip_high", "epsilon_high", "clip_ratio_high", "eps_clip_high", note=_CLIP),
    **_same("algorithm.dual_clip", "clip_ratio_c", "delta"),
    **_same(
        "algorithm.entropy_coef",
        "entropy_coeff",
        "ent_coef",
        "entropy_bonus",
        "entropy_coefficient",
        "entropy_loss_coef",
    ),
    **_same(
        "algorithm.dynamic_sampling",
        "filter_groups",
        "max_num_gen_batches",
        "dynamic_filtering",
        note='{"max_rounds": 3}; the first round counts',
    ),
    **_same("data.solution", "completion_field", "response_key", "output_key", note="for sft and noisy_sft"),
    **_same("algorithm.mask_truncated", "mask_truncated_completions", "overlong_filtering"),
    **_same("algorithm.importance_correction", "vllm_importance_sampling_correction", "rollout_is", "tis", "use_tis"),
    **_same(
        "algorithm.importance_correction.cap",
        "vllm_importance_sampling_cap",
        "tis_imp_ratio_cap",
        "rollout_is_threshold",
    ),
    **_same(
        "num_generations",
        "n",
        "rollout_n",
        "rollout.n",
        "num_samples",
        "group_size",
        "n_samples_per_prompt",
        "num_return_sequences",
        "samples_per_prompt",
    ),
    **_same(
        "max_completion_length",
        "max_new_tokens",
        "max_response_length",
        "response_length",
        "max_tokens",
        "generate_max_len",
        "max_response_len",
    ),
    **_same("max_prompt_length", "prompt_max_len", "max_prompt_len", "prompt_length"),
    **_same(
        "max_prompt_length",
        "max_length",
        "max_seq_length",
        "max_model_len",
        "max_seq_len",
        note="and max_completion_length: the two are limited apart",
    ),
    **_same("max_steps", "total_training_steps", "total_steps", "num_steps", "training_steps"),
    **_same(
        "max_steps",
        "total_epochs",
        "num_train_epochs",
        "num_epochs",
        "epochs",
        note="the length of a run is given in steps",
    ),
    **_same(
        "prompts_per_step",
        "train_batch_size",
        "rollout_batch_size",
        "batch_size",
        "global_batch_size",
        "generation_batch_size",
        note="counts prompts; each has num_generations samples",
    ),
    **_same(
        "prompts_per_update",
        "ppo_mini_batch_size",
        "mini_batch_size",
        "minibatch_size",
        "num_mini_batches",
        note="counts prompts and must divide prompts_per_step",
    ),
    **_same(
        "micro_batch_tokens",
        "per_device_train_batch_size",
        "ppo_micro_batch_size",
        "ppo_micro_batch_size_per_gpu",
        "micro_batch_size",
        "micro_train_batch_size",
        "ppo_max_token_len_per_gpu",
        note="counts tokens; leave it out and the planner chooses; prompts per step are prompts_per_step",
    ),
    **_same("", "gradient_accumulation_steps", "steps_per_generation", note=_ACCUMULATION),
    **_same(
        "",
        "num_iterations",
        "mu",
        "ppo_epochs",
        note="each rollout is used once; more updates per step come from a smaller prompts_per_update",
    ),
    **_same("", "top_p", "top_k", "min_p", "repetition_penalty", note=_FULL),
    **_same(
        "",
        "gradient_checkpointing",
        "enable_gradient_checkpointing",
        note="not needed: the planner decides which layers are recomputed",
    ),
    **_same(
        "",
        "ref_model",
        "reference_model",
        "ref_update_steps",
        "sync_ref_model",
        note="the reference is the start model; it is loaded when algorithm.kl.coef is above 0",
    ),
    **_same(
        "dtype",
        "bf16",
        "fp16",
        "torch_dtype",
        "precision",
        "mixed_precision",
        note="float32 or bfloat16; fp32 masters always exist",
    ),
    **_same("engine", "use_vllm", "vllm_mode", "rollout_engine", note="auto, transformers or vllm"),
    **_same("device.memory_gib", "gpu_memory_utilization", "vllm_gpu_memory_utilization"),
    **_same("device.count", "n_gpus_per_node", "num_gpus", "world_size", "nnodes"),
    **_same(
        "data",
        "dataset",
        "dataset_name",
        "train_files",
        "train_dataset",
        "prompt_data",
        note='{"dataset": NAME, "split": "train", "holdout": 200}',
    ),
    **_same("data.split", "dataset_split", "dataset_train_split"),
    **_same("data.holdout", "val_size", "test_size", "eval_split"),
    **_same(
        "rewards",
        "reward",
        "reward_funcs",
        "reward_fn",
        "reward_function",
        "reward_weights",
        "custom_reward_function",
        note='terms with weights, such as {"auto": 1.0}',
    ),
    **_same("prompt.system", "system_prompt", "system_message"),
    **_same("prompt.suffix", "instruction", "prompt_suffix", "instruction_suffix"),
    **_same("prompt.template_kwargs", "chat_template_kwargs", "apply_chat_template_kwargs"),
    **_same("prompt.stop", "stop_strings", "stop_sequences", "stop_words"),
    **_same("looks.every", "eval_steps", "test_freq", "eval_strategy", "evaluation_strategy", "eval_every"),
    **_same("looks.suites", "eval_dataset", "val_files", "eval_datasets", "benchmarks"),
    **_same("looks.batch_size", "per_device_eval_batch_size", "eval_batch_size", "val_batch_size"),
    **_same("save.every", "save_steps", "save_freq", "save_strategy", "checkpoint_every"),
    **_same("save.keep", "save_total_limit", "max_actor_ckpt_to_keep", "max_ckpt_num"),
    **_same("stop.patience", "early_stopping_patience", "early_stopping"),
    **_same("lora", "peft_config", "use_peft", "lora_config", "lora_rank", note='{"r": 16, "alpha": 32}'),
    **_same("lora.r", "lora_r", "rank"),
    **_same("lora.alpha", "lora_alpha"),
    **_same("lora.targets", "target_modules", "lora_target_modules"),
    **_same("seed", "random_seed", "data_seed", "manual_seed"),
    **_same("name", "run_name", "experiment_name", "project_name", "job_name"),
    **_same("tags", "labels", "run_tags"),
    **_same("", "output_dir", "default_local_dir", note="the service decides where files lie"),
    **_same(
        "",
        "report_to",
        "logging_steps",
        "logger",
        "log_completions",
        "num_completions_to_print",
        note="every step's curves are always recorded",
    ),
    **_same(
        "model", "resume_from_checkpoint", "resume_mode", "load_checkpoint_path", note="run:ID/step-N, or fork that run"
    ),
    **_same("lora.dropout", "disable_dropout", "attention_dropout", note="0 by default; nothing else drops out"),
    **_same("", *_SECTIONS, note="fields are not grouped by part here; write them at the top of the recipe"),
    **_same("suites", "tasks", "evals", note="a list of suite names"),
}


def foreign_hint(name: str) -> str | None:
    """What to write instead of ``name``, or None when no other trainer's name is known."""
    known = FOREIGN_NAMES.get(name) or FOREIGN_NAMES.get(name.rpartition(".")[2])
    if known is None:
        return None
    if not known.field:
        return known.note
    return f"write {known.field}" + (f" ({known.note})" if known.note else "")
