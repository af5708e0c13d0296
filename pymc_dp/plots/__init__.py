"""Pictures for matplotlib: axes in, axes out; what is pictured is always called ``data``."""
