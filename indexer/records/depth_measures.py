"""What is measured of each layer of a model: the columns of profiles, on disk, in the database and in answers."""

# Of each there may be an error, and NULL is what was not asked or says nothing.
MEASURES = (
    "tolerance",
    "tolerance_own",
    "readable",
    "recovered",
    "recovered_seed",
    "closer",
    "closer_ratio",
    "verified",
    "reach",
    "own",
    "start_share",
    "cka",
    "drift",
    "image_error",
)
