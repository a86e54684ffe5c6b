"""What vLLM is started with, what it may not decide for itself, and what its failures become. No vLLM runs here."""

import json
import sys

import pytest
import torch

from core.engines import vllm_engine, vllm_launch
from core.engines.base import EngineError, NonFiniteLogitsError, Request, SamplingParams
from core.engines.opening import choose_engine
from core.engines.vllm_engine import VllmEngine
from core.engines.vllm_launch import EngineDiedError, EngineUnavailableError, VllmOptions

OPTIONS = VllmOptions(
    max_model_len=64, max_num_seqs=8, kv_cache_bytes=2**20, dtype="float32", device="cpu", in_process=True
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 128}))
    return tmp_path


class Output:
    """One completion as vLLM gives it."""

    def __init__(self, token_ids, logprobs, finish_reason="length"):
        self.token_ids, self.finish_reason = token_ids, finish_reason
        self.logprobs = type("Flat", (), {"logprobs": logprobs})()
        self.outputs = [self]


class Core:
    """The parts of ``vllm.LLM`` that the engine uses, with a scripted answer."""

    def __init__(self, answer):
        self._answer = answer
        model_config = type("Model", (), {"get_vocab_size": lambda self: 100})()
        processor = type("Processor", (), {"process_outputs": lambda self, outputs: outputs})()
        self.llm_engine = type("Engine", (), {"model_config": model_config, "output_processor": processor})()

    def generate(self, prompts, params, use_tqdm):
        if isinstance(self._answer, Exception):
            raise self._answer
        step = type("Step", (), {"request_id": "0", "num_nans_in_logits": getattr(self._answer, "nans", 0)})
        self.llm_engine.output_processor.process_outputs([step])
        return [self._answer for _ in prompts]


@pytest.fixture
def serving(monkeypatch, folder):
    def open_with(answer):
        monkeypatch.setattr(vllm_engine, "start", lambda *_: Core(answer))
        monkeypatch.setattr(vllm_engine, "_sampling", lambda seed, params, logprobs: (seed, params, logprobs))
        return VllmEngine(folder, OPTIONS)

    return open_with


def ask(engine, **params):
    return engine.generate([Request((1, 2))], SamplingParams(**{"max_tokens": 3, **params}))[0]


def test_nothing_that_matters_is_left_to_vllms_defaults(folder):
    arguments = OPTIONS.arguments(folder)
    assert arguments["max_model_len"] == 64
    assert arguments["max_num_seqs"] == 8
    assert arguments["kv_cache_memory_bytes"] == 2**20
    assert arguments["logprobs_mode"] == "processed_logprobs"
    assert arguments["generation_config"] == "vllm"
    assert arguments["dtype"] == "float32"


@pytest.mark.parametrize(
    ("asked", "device", "installed", "chosen"),
    [
        ("auto", "cuda", "0.24.0", "vllm"),
        ("auto", "cuda", None, "transformers"),
        ("auto", "cpu", "0.32.0", "transformers"),
        ("vllm", "cpu", "0.32.0", "vllm"),
        ("transformers", "cuda", "0.24.0", "transformers"),
    ],
)
def test_auto_is_vllm_on_a_card_that_has_it(monkeypatch, asked, device, installed, chosen):
    monkeypatch.setattr("core.engines.opening.vllm_version", lambda: installed)
    assert choose_engine(asked, device) == chosen


def test_vllm_by_name_without_vllm_says_what_to_do(monkeypatch, folder):
    monkeypatch.setattr("core.engines.opening.vllm_version", lambda: None)
    with pytest.raises(EngineUnavailableError, match="set engine to transformers or auto"):
        choose_engine("vllm", "cuda")
    monkeypatch.setattr(vllm_launch, "vllm_version", lambda: None)
    with pytest.raises(EngineUnavailableError, match="install the extra gpu"):
        vllm_launch.start(folder, OPTIONS)


def test_more_tokens_than_positions_are_refused_before_a_start(folder):
    with pytest.raises(EngineError, match="this model allows 2 to 128 tokens"):
        vllm_launch.check_length(folder, 129)


def test_a_dead_core_is_an_engine_error_with_the_reason(serving):
    with pytest.raises(EngineDiedError, match="failed while generating: RuntimeError: EngineCore encountered an issue"):
        ask(serving(RuntimeError("EngineCore encountered an issue")))


def test_a_full_card_stays_what_it_is(serving):
    with pytest.raises(torch.OutOfMemoryError):
        ask(serving(torch.OutOfMemoryError("CUDA out of memory")))


def test_logits_that_are_not_finite_are_named(serving):
    with pytest.raises(NonFiniteLogitsError):
        ask(serving(Output([3, 4, 5], [-1.0, float("nan"), -1.0])))


def test_without_logprobs_vllm_s_own_count_of_nans_is_looked_at(serving):
    engine = serving(Output([3, 4, 5], None))
    assert engine.generate([Request((1, 2))], SamplingParams(max_tokens=3), logprobs=False)[0].logprobs == ()
    broken = Output([3, 4, 5], None)
    broken.nans = 7
    with pytest.raises(NonFiniteLogitsError):
        serving(broken).generate([Request((1, 2))], SamplingParams(max_tokens=3), logprobs=False)


def test_a_stop_token_sampled_last_counts_as_a_stop(serving):
    done = ask(serving(Output([3, 4, 5], [-1.0, -2.0, -3.0], "length")), stop_token_ids=(5,))
    assert (done.token_ids, done.logprobs, done.finish_reason) == ((3, 4, 5), (-1.0, -2.0, -3.0), "stop")


@pytest.mark.parametrize("answer", [Output([3], [-1.0, -2.0]), Output([], []), Output([3], [-1.0], "abort")])
def test_an_answer_that_makes_no_sense_is_an_error(serving, answer):
    with pytest.raises(EngineDiedError):
        ask(serving(answer))


def test_an_engine_on_a_folder_takes_no_new_weights(serving):
    with pytest.raises(EngineError, match="without live weights"):
        serving(Output([3], [-1.0])).update_weights()


def test_live_weights_need_an_engine_in_this_process(folder):
    options = VllmOptions(64, 8, 2**20, "float32", "cuda", in_process=False)
    with pytest.raises(EngineError, match="set in_process"):
        VllmEngine(folder, options, live=dict)


def test_a_start_leaves_the_environment_as_it_was(monkeypatch):
    monkeypatch.delenv("VLLM_HOST_IP", raising=False)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    with vllm_launch._environment(OPTIONS):
        inside = {name: vllm_launch.os.environ[name] for name in ("VLLM_HOST_IP", "VLLM_ENABLE_V1_MULTIPROCESSING")}
    assert inside == {"VLLM_HOST_IP": "127.0.0.1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    assert "VLLM_HOST_IP" not in vllm_launch.os.environ
    assert vllm_launch.os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"


def test_a_checkpoints_moments_are_kept_from_vllm(tmp_path):
    from safetensors.torch import save_file

    checkpoint = tmp_path / "step-3"
    checkpoint.mkdir()
    for name in ("model.safetensors", "optimizer.safetensors"):
        save_file({"w": torch.zeros(2)}, checkpoint / name)
    (checkpoint / "config.json").write_text("{}")
    with vllm_launch._weights_alone(checkpoint) as served:
        assert sorted(file.name for file in served.iterdir()) == ["config.json", "model.safetensors"]
    assert not served.exists()
    (checkpoint / "optimizer.safetensors").unlink()
    with vllm_launch._weights_alone(checkpoint) as served:
        assert served == checkpoint


@pytest.mark.parametrize(("visible", "named"), [("GPU-12ab", "3"), ("0", "0"), ("", "")])
def test_a_card_pinned_by_uuid_is_named_by_its_index(monkeypatch, visible, named):
    class Nvml:
        nvmlInit = nvmlShutdown = staticmethod(lambda: None)
        nvmlDeviceGetHandleByUUID = staticmethod(lambda uuid: {"GPU-12ab": 3}[uuid])
        nvmlDeviceGetIndex = staticmethod(lambda handle: handle)

    monkeypatch.setitem(sys.modules, "pynvml", Nvml)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    vllm_launch.name_card_by_index()
    assert vllm_launch.os.environ["CUDA_VISIBLE_DEVICES"] == named


class Executor:
    """A core's executor that falls asleep and then finds that the card has less free memory than before."""

    def __init__(self, message):
        self.is_sleeping, self.sleeping_tags, self._message = False, set(), message

    def sleep(self, level):
        raise AssertionError(self._message)


def sleepy(monkeypatch, folder, message):
    executor = Executor(message)
    core = Core(Output((5,), (-0.5,)))
    core.llm_engine.model_executor, core.sleep = executor, executor.sleep
    monkeypatch.setattr(vllm_engine, "start", lambda *_: core)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    options = VllmOptions(
        max_model_len=64,
        max_num_seqs=8,
        kv_cache_bytes=2**20,
        dtype="float32",
        device="cuda",
        in_process=True,
        sleeps=True,
    )
    return VllmEngine(folder, options), executor


def test_memory_that_others_took_meanwhile_does_not_keep_the_engine_from_sleeping(monkeypatch, folder):
    engine, executor = sleepy(monkeypatch, folder, "Memory usage increased after sleeping.")
    engine.sleep()
    # What vLLM has to know to be woken again.
    assert executor.is_sleeping
    assert executor.sleeping_tags == {"weights", "kv_cache"}


def test_any_other_failure_to_sleep_ends_the_engine(monkeypatch, folder):
    engine, executor = sleepy(monkeypatch, folder, "something else")
    with pytest.raises(EngineDiedError, match="going to sleep"):
        engine.sleep()
    assert not executor.is_sleeping
