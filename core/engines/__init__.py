"""Text generation and the model files behind it: engines, prompt rendering, loading, saving and hashing of weights.

What lives here: the :class:`~core.engines.base.Engine` protocol and its implementations, the one place that renders a
prompt to token ids, and everything that reads or writes a Hugging Face model folder.

What may not: verifiers, rewards, losses, SQL, HTTP. An engine knows token ids and sampling parameters; what a completion
is worth is decided elsewhere. Importing this package or ``base`` imports no torch.
"""
