"""Parts of `query purity`: neighbours in order, labels laid on models, permutations of them, and intervals."""
