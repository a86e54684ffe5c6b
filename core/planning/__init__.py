"""Plans made before a run starts: memory by component, disk for checkpoints, and what the run will cost in tokens.

What lives here: arithmetic on model facts and recipes, in bytes and GiB, without torch. What may not: measurements of a
machine, databases, and anything that runs a model. Every formula states its source; constants that are estimates say so.
"""

from core.planning.cost import Cost, estimate
from core.planning.facts import PlanError, model_facts
from core.planning.plan import Card, Plan, plan

__all__ = ["Card", "Cost", "Plan", "PlanError", "estimate", "model_facts", "plan"]
