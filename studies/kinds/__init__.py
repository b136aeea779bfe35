"""Is the kind of a change recognised? Planted changes of several bases, against ordinary trainings of them."""
