"""Images and diffusion: histograms, upsampling, steps of a schedule."""

from warpsmith.vision.add_noise import add_noise, noise_table
from warpsmith.vision.histogram import histogram
from warpsmith.vision.timestep_embedding import timestep_embedding
from warpsmith.vision.upsample_nearest2d import upsample_nearest2d

__all__ = [
    "add_noise",
    "histogram",
    "noise_table",
    "timestep_embedding",
    "upsample_nearest2d",
]
