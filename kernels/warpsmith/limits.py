"""What a GPU can do at best: the data sheets, and the ceilings measured on the card at hand."""

from warpsmith.measure.limits import *  # noqa: F403
