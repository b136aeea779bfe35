"""Which base a model was made from, among those whose matrices an atlas holds: by weights, shapes and names."""
