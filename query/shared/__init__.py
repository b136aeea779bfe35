"""Code that several questions share: statistics, sentences, the sandbox."""
