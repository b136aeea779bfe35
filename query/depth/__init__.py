"""What the layers of a model keep of their input, beside where its weights changed."""
