"""The accuracy rule for one tensor."""

from warpsmith.spec.accuracy import *  # noqa: F403
