"""Whether vectors tell two tasks on one text apart once the text's mean is taken away; docs/vectors.md has the table."""
