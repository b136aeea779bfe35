"""File formats of checkpoints, read tensor by tensor, without trust in what they claim and without unpickling."""
