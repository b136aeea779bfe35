"""What models say of themselves: README, results, dataset names, and what config.json tells of the head."""
