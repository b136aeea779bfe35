"""`query schema`: what SQL can be asked of."""
