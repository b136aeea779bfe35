"""Parts of `query map`: projection, colours, the picture and the page."""
