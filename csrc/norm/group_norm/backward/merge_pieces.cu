// What rungs of several kernels launch for their statistics.
#include "norm/merge_pieces.cuh"
