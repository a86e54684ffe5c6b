"""Keys of a checkpoint's provenance that others than its writer read."""

CYCLE_START = "cycle_start"
"""Step of the checkpoint that continuing from this one needs beside it: its cycle of re-grounding began there."""

SOURCE_RUN = "source_run"
"""The train run from whose checkpoints this one was computed or exported."""

FORM = "format"
"""What an exported checkpoint is: hf, a folder that can be loaded; gguf or adapter, files to take away."""
