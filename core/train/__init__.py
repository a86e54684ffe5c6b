"""The training loop: rollouts, updates, checkpoints, looks, and continuing after an interruption.

What is pure arithmetic on tensors lives in ``core.rl``, statistics in ``core.damage``, SQL in ``core.store``; this package
only puts them in order.
"""
