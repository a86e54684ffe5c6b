"""Evaluation: suites, one record per completion, accuracies with their uncertainty, and paired comparisons.

It samples through an engine that it is given and stores nothing itself. Stop rules live in :mod:`core.damage`.
"""
