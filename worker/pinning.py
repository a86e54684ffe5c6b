"""Which card this worker owns, and the environment that shows a runner that card and no other.

``DRIFTLINE_GPU`` is a full UUID, an exact product name or ``cpu``. NVML resolves it, because NVML neither creates a CUDA
context nor depends on CUDA's device order. It deliberately never picks "the first card": a name that fits none or
several cards is refused.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

import psutil


class PinningError(RuntimeError):
    """The named card cannot be pinned; the message lists the cards that are there."""


class Nvml(Protocol):
    """The part of ``pynvml`` that is used here; tests pass their own."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlSystemGetDriverVersion(self) -> str | bytes: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...
    def nvmlDeviceGetName(self, handle: Any) -> str | bytes: ...
    def nvmlDeviceGetUUID(self, handle: Any) -> str | bytes: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any: ...


@dataclass(frozen=True)
class Device:
    """A pinned device. ``index`` is NVML's (PCI order); ``memory_bytes`` is the card's total, or the host's for a CPU.

    ``host_bytes`` is the host's memory in total, which offloading needs; 0 where it is not known.
    """

    kind: Literal["cuda", "cpu"]
    uuid: str
    name: str
    driver: str
    index: int
    memory_bytes: int
    threads: int
    host_bytes: int = field(default=0, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """The JSON form stored on workers and attempts."""
        return asdict(self)


def resolve_device(gpu: str, nvml: Nvml | None = None, env: Mapping[str, str] = os.environ) -> Device:
    """Return the one device that ``gpu`` names, or raise :class:`PinningError`.

    A UUID must be given in full; product names are compared exactly (case and spaces included).
    """
    wanted = gpu.strip()
    threads = cpu_threads(env)
    if wanted == "cpu":
        return Device("cpu", "cpu", "cpu", "", -1, psutil.virtual_memory().total, threads)
    if not wanted:
        raise PinningError("DRIFTLINE_GPU is empty; name a GPU UUID, an exact product name, or cpu")
    cards = list_cards(nvml if nvml is not None else _pynvml(), threads)
    matches = [card for card in cards if wanted in (card.uuid, card.name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise PinningError(
            f"DRIFTLINE_GPU={wanted!r} fits {len(matches)} cards; name one by its UUID.\n{_listing(matches)}"
        )
    raise PinningError(
        f"DRIFTLINE_GPU={wanted!r} fits no card; name a full UUID, an exact product name, or cpu.\n{_listing(cards)}"
    )


def list_cards(nvml: Nvml, threads: int) -> list[Device]:
    """Every card NVML sees, in PCI order; raises :class:`PinningError` when NVML itself does not work."""
    with _session(nvml):
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        return [_card(nvml, index, driver, threads) for index in range(nvml.nvmlDeviceGetCount())]


def memory_in_use(device: Device, nvml: Nvml | None = None) -> int:
    """Bytes of the card's memory that are in use now; 0 for a CPU. Raises :class:`PinningError`."""
    if device.kind == "cpu":
        return 0
    library = nvml if nvml is not None else _pynvml()
    with _session(library):
        handle = library.nvmlDeviceGetHandleByIndex(device.index)
        return int(library.nvmlDeviceGetMemoryInfo(handle).used)


def runner_environment(device: Device) -> dict[str, str]:
    """Variables to add to a runner's environment so that it sees ``device`` alone and computes reproducibly.

    The thread counts are fixed because sums split over another number of threads round differently, and a resumed CPU
    run must be bit-identical to an undisturbed one. MKL's mode is AUTO: the same bits on the same machine; why not
    COMPATIBLE is in docs/adr/0010-bits-on-the-cpu.md.
    """
    threads = str(device.threads)
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": device.uuid if device.kind == "cuda" else "",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_DYNAMIC": "FALSE",
        # A thread that spins at a barrier takes the core from the one it waits for when anything else runs beside it.
        "OMP_WAIT_POLICY": "PASSIVE",
        "MKL_CBWR": "AUTO",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
    }


def cpu_threads(env: Mapping[str, str]) -> int:
    """Threads a runner computes with: ``OMP_NUM_THREADS`` where the operator set it, else the usable physical cores."""
    raw = env.get("OMP_NUM_THREADS", "")
    if raw.isdecimal() and int(raw) > 0:
        return int(raw)
    usable = len(os.sched_getaffinity(0))
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))


def _card(nvml: Nvml, index: int, driver: str, threads: int) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return Device(
        kind="cuda",
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        driver=driver,
        index=index,
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        threads=threads,
        host_bytes=psutil.virtual_memory().total,
    )


@contextmanager
def _session(nvml: Nvml) -> Iterator[None]:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise PinningError(
            f"NVML cannot start ({error}); install the NVIDIA driver, or set DRIFTLINE_GPU=cpu"
        ) from error
    try:
        yield
    except nvml.NVMLError as error:
        raise PinningError(f"NVML failed while reading the cards: {error}") from error
    finally:
        nvml.nvmlShutdown()


def _pynvml() -> Nvml:
    import pynvml

    library: Nvml = pynvml
    return library


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _listing(cards: list[Device]) -> str:
    if not cards:
        return "This machine has no card."
    return "\n".join(f"  {card.index}: {card.name}  {card.uuid}" for card in cards)
