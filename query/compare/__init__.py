"""`query compare`: two models of one base side by side."""
