"""Named random streams: every random choice of the service is drawn from a stream that its name determines.

A stream is keyed by the recipe's seed and a path of names such as ``("rollout", step, prompt, sample)``. Two runs of one
recipe therefore draw the same numbers, a resumed run draws what it would have drawn, and no stream depends on how many
numbers another one consumed. It deliberately knows nothing of torch or numpy: callers seed their own generators.
"""

import hashlib
import json
import random

_DOMAIN = b"driftline/stream/1\n"


def stream_seed(seed: int, *names: str | int) -> int:
    """Return the 63-bit seed of the stream ``names`` under the recipe's ``seed``.

    Names are hashed with their types, so ``("step", 1)`` and ``("step", "1")`` are different streams.
    """
    path = json.dumps([seed, *names], separators=(",", ":"), ensure_ascii=True).encode()
    return int.from_bytes(hashlib.sha256(_DOMAIN + path).digest()[:8], "big") >> 1


def stream(seed: int, *names: str | int) -> random.Random:
    """Return Python's Mersenne Twister seeded with :func:`stream_seed` (its sequence is fixed across versions)."""
    return random.Random(stream_seed(seed, *names))  # noqa: S311 - reproducibility is the purpose, not secrecy


def uniforms(seed: int, *names: str | int, n: int) -> list[float]:
    """Return ``n`` numbers uniform in [0, 1) from the stream ``names``."""
    generator = stream(seed, *names)
    return [generator.random() for _ in range(n)]
