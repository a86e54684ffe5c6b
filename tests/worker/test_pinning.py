"""Pinning by UUID, exact name or cpu, against a fake NVML."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from worker.pinning import Device, PinningError, list_cards, memory_in_use, resolve_device, runner_environment

GIB = 1024**3
A = ("GPU-aaaaaaaa-0000-0000-0000-000000000001", "NVIDIA GeForce RTX 4090")
B = ("GPU-bbbbbbbb-0000-0000-0000-000000000002", "NVIDIA GeForce RTX 4090")
C = ("GPU-cccccccc-0000-0000-0000-000000000003", "NVIDIA GeForce RTX 4090 D")


class FakeNvmlError(Exception):
    pass


@dataclass
class FakeNvml:
    """Answers like pynvml; ``as_bytes`` imitates its older releases; ``broken`` has no driver."""

    cards: list
    as_bytes: bool = False
    broken: bool = False
    open_sessions: int = 0
    calls: list = field(default_factory=list)
    NVMLError = FakeNvmlError

    def _text(self, value):
        return value.encode() if self.as_bytes else value

    def nvmlInit(self):
        if self.broken:
            raise FakeNvmlError("Driver Not Loaded")
        self.open_sessions += 1

    def nvmlShutdown(self):
        self.open_sessions -= 1

    def nvmlSystemGetDriverVersion(self):
        return self._text("570.86.10")

    def nvmlDeviceGetCount(self):
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.cards[index]

    def nvmlDeviceGetName(self, handle):
        return self._text(handle[1])

    def nvmlDeviceGetUUID(self, handle):
        return self._text(handle[0])

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=24 * GIB, free=23 * GIB, used=GIB)


@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_uuid_names_its_card_whatever_its_place(as_bytes):
    nvml = FakeNvml([A, B, C], as_bytes=as_bytes)

    device = resolve_device(B[0], nvml, env={"OMP_NUM_THREADS": "3"})

    assert device == Device("cuda", B[0], B[1], "570.86.10", 1, 24 * GIB, 3)
    assert nvml.open_sessions == 0


def test_a_product_name_must_match_exactly():
    nvml = FakeNvml([A, C])

    assert resolve_device("NVIDIA GeForce RTX 4090", nvml).uuid == A[0]
    assert resolve_device("NVIDIA GeForce RTX 4090 D", nvml).uuid == C[0]
    for near in ("RTX 4090", "nvidia geforce rtx 4090", "GPU-aaaaaaaa", "0"):
        with pytest.raises(PinningError, match="fits no card"):
            resolve_device(near, nvml)


def test_an_ambiguous_name_is_refused_and_lists_only_the_cards_it_fits():
    with pytest.raises(PinningError) as refusal:
        resolve_device("NVIDIA GeForce RTX 4090", FakeNvml([A, B, C]))

    text = str(refusal.value)
    assert "fits 2 cards" in text
    assert A[0] in text
    assert B[0] in text
    assert C[0] not in text


def test_a_missing_card_is_refused_and_lists_every_card():
    with pytest.raises(PinningError) as refusal:
        resolve_device("NVIDIA H200", FakeNvml([A, C]))

    assert A[0] in str(refusal.value)
    assert C[0] in str(refusal.value)
    with pytest.raises(PinningError, match="no card"):
        resolve_device("NVIDIA H200", FakeNvml([]))


def test_without_a_driver_the_message_says_how_to_mend_it():
    with pytest.raises(PinningError, match="DRIFTLINE_GPU=cpu"):
        resolve_device(A[0], FakeNvml([A], broken=True))


def test_an_empty_name_is_refused():
    with pytest.raises(PinningError, match="empty"):
        resolve_device("  ", FakeNvml([A]))


def test_cpu_asks_no_driver():
    device = resolve_device("cpu", FakeNvml([A], broken=True))

    assert device.kind == "cpu"
    assert device.threads >= 1
    assert device.memory_bytes > GIB
    assert memory_in_use(device, FakeNvml([A], broken=True)) == 0


def test_memory_in_use_is_read_from_the_pinned_card():
    nvml = FakeNvml([A, B])
    assert memory_in_use(list_cards(nvml, 1)[1], nvml) == GIB


def test_a_runner_sees_its_card_by_full_uuid_in_pci_order():
    env = runner_environment(resolve_device(C[0], FakeNvml([A, B, C])))

    assert env["CUDA_VISIBLE_DEVICES"] == C[0]
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_cpu_runner_sees_no_card_and_computes_with_fixed_threads():
    env = runner_environment(resolve_device("cpu", env={"OMP_NUM_THREADS": "2"}))

    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert {env["OMP_NUM_THREADS"], env["MKL_NUM_THREADS"], env["OPENBLAS_NUM_THREADS"]} == {"2"}
    assert env["MKL_CBWR"] == "AUTO"
    assert env["OMP_WAIT_POLICY"] == "PASSIVE"
    assert env["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.mark.parametrize("raw", ["0", "-1", "two", ""])
def test_an_unusable_thread_count_falls_back_to_the_cores(raw):
    assert resolve_device("cpu", env={"OMP_NUM_THREADS": raw}).threads >= 1
