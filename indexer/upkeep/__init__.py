"""What is done with an atlas that is there: verify, repair, remove."""
