"""Who does the units of work, and with how much of the machine.

Plural, because `indexer.build` is the function: a package of that name would take its place once imported.
"""
