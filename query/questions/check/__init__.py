"""Whether a model is what its card says, claim by claim, and whether a policy allows it."""
