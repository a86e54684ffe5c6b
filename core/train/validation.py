"""Asks a train run's weights its validation items: those by which a jump is chosen, disjoint from training and held-out items.

Answers are stored as evaluations of suite ``validation``, so every decision can be looked up item by item, and an attempt
that continues in the middle of a decision asks only what was not answered yet.
"""

from dataclasses import dataclass

from core.engines.base import NonFiniteLogitsError, SamplingParams
from core.evals.stored import Asked, Evaluator, Scores, scores_of
from core.jobs import RunContext
from core.recipes import TrainRecipe
from core.store import evaluations
from core.tasks.items import ItemSet
from core.train.candidates import Draw, halves

VALIDATION = "validation"
DEFAULT_BATCH = 64


class Interrupted(Exception):  # noqa: N818 - not an error: the run was asked to stop
    """The run was asked to stop while items were being asked; nothing of that evaluation is kept."""


@dataclass(frozen=True)
class Validation:
    """The items, and whoever asks them greedily as looks do."""

    context: RunContext
    recipe: TrainRecipe
    evaluator: Evaluator
    params: SamplingParams
    items: ItemSet

    def reference(self, step: int, n: int) -> str:
        """How stored answers name weights that a jump worth ``n`` after ``step`` would give."""
        return f"run:{self.context.run_id}/step-{step}+{n}"

    def known(self, step: int, n: int, draw: Draw) -> Scores | None:
        """The scores that an earlier attempt got; None where it got none."""
        with self.context.db.read() as session:
            for row in evaluations.list_for_run(session, self.context.run_id, suite=VALIDATION, purpose=draw):
                if (row.step, row.model_ref, row.status) == (step, self.reference(step, n), "finished"):
                    return scores_of(evaluations.verdicts(session, row.id))
        return None

    def ask(self, step: int, n: int, draw: Draw) -> Scores | None:
        """Ask the engine as it is now; None where the weights give no finite logits. Raises :class:`Interrupted`."""
        asked = Asked(
            suite=VALIDATION,
            split=self.items.split,
            dataset_hash=self.items.sha256,
            verifier=self.items.verifier,
            items=halves(self.items.items, self.recipe.seed, step)[draw],
            params=self.params,
            purpose=draw,
            model_ref=self.reference(step, n),
            checkpoint_sha256=None,
            batch_size=self.recipe.looks.batch_size if self.recipe.looks else DEFAULT_BATCH,
            seed=self.recipe.seed,
            step=step,
        )
        try:
            answered = self.evaluator.ask(asked)
        except NonFiniteLogitsError:
            if n == 0:
                raise
            with self.context.db.fenced(self.context.fence) as session:
                evaluations.discard_unfinished(session, self.context.fence)
            return None
        if answered is None:
            raise Interrupted
        with self.context.db.fenced(self.context.fence) as session:
            self.evaluator.close(session, answered)
        return answered.scores
