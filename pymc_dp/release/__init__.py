"""The release: a model and its sensitivities in, one private draw and its claim out."""
