"""Images and diffusion: histograms."""

from warpsmith.vision.histogram import histogram

__all__ = ["histogram"]
