"""The faces of the questions: the terminal, Python, agents, the browser, the report."""
