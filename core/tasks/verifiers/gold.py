"""Registration check: every reference answer must verify against itself, or the data set is refused.

A reference that its own grader cannot confirm would make each right answer wrong. Graded in the pool, since references
come from files and can be hostile too.
"""

from collections.abc import Iterable

from core.tasks.items import Item, ItemError
from core.tasks.pool import Job, VerifierPool
from core.tasks.verifiers.verdict import Outcome


def check_golds(items: Iterable[Item], pool: VerifierPool) -> None:
    """Raise :class:`ItemError` naming the items whose reference answer is not graded correct as an answer.

    Items with tests have a reference only where ``tests.reference`` gives a program that must pass them; instructions have
    none. Where no item has one, an empty answer is graded, so that a missing sandbox is found before anything is sampled.
    When an answer could not be judged because the machinery failed, nothing is known of the data: RuntimeError.
    """
    items = list(items)
    jobs = [Job(item, stated) for item in items if (stated := _stated(item)) is not None]
    if items and not jobs:
        (verdict,) = pool.grade([Job(items[0], "")])
        if verdict.verdict is Outcome.INFRA_ERROR:
            raise RuntimeError(f"answers to {items[0].source or 'these items'} cannot be judged: {verdict.reason}")
    verdicts = pool.grade(jobs)
    for job, verdict in zip(jobs, verdicts, strict=True):
        if verdict.verdict is Outcome.INFRA_ERROR:
            raise RuntimeError(f"the reference answer of item {job.item.id} could not be judged: {verdict.reason}")
    failed = [
        (job.item, verdict.reason)
        for job, verdict in zip(jobs, verdicts, strict=True)
        if verdict.verdict is not Outcome.CORRECT
    ]
    if failed:
        shown = "; ".join(f"{item.id} ({item.gold[:60]!r}: {reason})" for item, reason in failed[:3])
        source = failed[0][0].source or "the data"
        raise ItemError(
            f"{source}: field 'answer' of {len(failed)} of {len(jobs)} items does not verify against itself: {shown}; "
            "correct or remove these items"
        )


def _stated(item: Item) -> str | None:
    """The reference as a completion would state it, or None where the item has none."""
    if item.tests is not None:
        reference = item.tests.get("reference")
        return None if reference is None else f"```python\n{reference}\n```"
    return f"\\boxed{{{item.gold}}}" if item.verifier == "math" else f"<answer>{item.gold}</answer>"
