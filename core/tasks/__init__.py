"""Items and their grading: sources, splits, verifiers, the killable pool and reward terms.

Nothing here loads a model, samples a completion or touches the database, and nothing here imports torch.
"""
