"""Models end to end: how fast recommendation models answer by how they get their embeddings. `run.py` is the command."""
