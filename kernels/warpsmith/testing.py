"""Whether a result is right, and the helpers around it, for tests, benchmarks and users."""

from warpsmith.proof.testing import *  # noqa: F403
