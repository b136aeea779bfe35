"""`query report`: one HTML page with everything about a base's fine-tunes."""
