"""Parts of `query purity`: neighbours in order, labels laid on models, and permutations of them."""
