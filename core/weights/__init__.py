"""Weights made from a run's checkpoints: extrapolated along their line, or exported in another form.

What lives here: the jobs of the analyses ``extrapolate`` and ``export``, and the files they write. What may not: training (the
jump inside a run is `core.train.regrounding`) and decoding from combined outputs (`core.engines`).
"""
