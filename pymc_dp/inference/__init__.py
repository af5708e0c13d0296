"""What a reader may conclude from a release, at no price: everything here is post-processing."""
