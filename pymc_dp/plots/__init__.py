"""Pictures: matplotlib axes in, axes out."""
