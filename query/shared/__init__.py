"""What several questions use: statistics, figures, sentences, the sandbox."""
