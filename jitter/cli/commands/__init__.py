"""The verbs of `jitter`, one module each; a module defines the command of its own name."""
