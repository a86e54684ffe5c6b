"""Sequences to micro-batches under a budget of padded tokens.

A padded micro-batch costs rows times its longest row, so sequences of like length go together. The plan decides memory and
speed only: weights are folded per update (:mod:`core.rl.objective`), so how an update is cut changes no result beyond
rounding. Deliberately absent: packing several sequences into one row, which needs attention masks by block.
"""

from collections.abc import Sequence


def plan_micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Assign every sequence to exactly one micro-batch.

    Sequences are taken from long to short, equal lengths in their given order; a micro-batch is closed when one more row
    would take ``rows x longest`` over the budget. A sequence longer than the budget gets a micro-batch of its own. The
    most expensive micro-batch therefore comes first, where running out of memory costs least.

    Args:
        lengths: tokens of each sequence, prompt included, each at least 1.
        max_tokens: budget of padded tokens per micro-batch, at least 1.

    Returns:
        Lists of indices into ``lengths``; none is empty; no sequences give no micro-batches.

    Raises:
        ValueError: for a length or a budget below 1.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    for index, length in enumerate(lengths):
        if length < 1:
            raise ValueError(f"lengths[{index}] must be at least 1, got {length}")
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        # The first row of a batch is its longest, because the order falls.
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches
