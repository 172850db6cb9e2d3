// What the rungs launch for dw and db.
#include "norm/backward/sum_partials.cuh"
