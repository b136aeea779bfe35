"""How both commands speak to a person or a program: options, results, remarks, progress."""
