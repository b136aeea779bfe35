"""Fine-tunes whose every batch is kept, to test what ``query trace`` says of the text that a model was trained on."""
