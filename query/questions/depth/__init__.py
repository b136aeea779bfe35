"""What the layers of a model keep of their input, and where its weights changed."""
