"""Parts of `query predict`: votes, evidence of the head, calibration and its judgement."""
