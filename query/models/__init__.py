"""What an atlas knows of a model, and which models there are."""
