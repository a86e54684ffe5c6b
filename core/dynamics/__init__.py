"""Training as a trajectory: how linear it is, and how linear chance alone would look.

Here live the reading of checkpoint trajectories, their statistics, the nulls these are compared with, and their figures.
Numpy and scipy do the arithmetic; nothing here trains, loads a model object, or decides about stopping. Only ``job`` knows
the store.
"""
