// What rungs launch before they multiply.
#include "vision/conv1d_group_norm/arrange.cuh"
