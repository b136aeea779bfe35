"""Parts of `query clusters`: methods, members, agreement with labels, and how they are shown."""
