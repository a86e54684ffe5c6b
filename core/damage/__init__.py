"""Damage stop: has the policy lost held-out items that the base model answered?

Here live the draws, the stop rules, their simulated power and the status document, as pure functions on dataclasses and
plain dicts. Nothing here reads a file, a clock or a database, imports torch, or evaluates a model: the trainer brings the
observations and stores what comes back, the api shows it.
"""
