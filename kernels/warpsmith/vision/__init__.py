"""Images and diffusion: histograms, upsampling, boxes, steps of a schedule."""

from warpsmith.vision.add_noise import add_noise, noise_table
from warpsmith.vision.conv1d_group_norm import conv1d_group_norm
from warpsmith.vision.histogram import histogram
from warpsmith.vision.nms import nms, nms_fixed
from warpsmith.vision.timestep_embedding import timestep_embedding
from warpsmith.vision.upsample_nearest2d import upsample_nearest2d

__all__ = [
    "add_noise",
    "conv1d_group_norm",
    "histogram",
    "nms",
    "nms_fixed",
    "noise_table",
    "timestep_embedding",
    "upsample_nearest2d",
]
