"""The algorithms of reinforcement learning as functions of tensors: advantages, objectives, chunked backward, optimizers.

What may live here: code that takes tensors and plain numbers and returns tensors and plain numbers. What may not: files,
configuration objects, models of a particular library, tokenizers, the store, the web. One module is an exception and says
why: :mod:`core.rl.lean`. The trainer in ``core.train`` runs the model's body, hands the hidden states to
:mod:`core.rl.chunked` and steps with :mod:`core.rl.optim`.

Letters of the dimension suffixes: B sequences, T tokens (of one flattened micro-batch), S positions of a padded sequence,
V vocabulary, H hidden size, C tokens of one chunk.
"""
