// Decoding from a cache in 16 bits: up to 16 queries, of several tokens and heads, share a head of keys and a pass over it.
//   Each of a block's warps has keys of its own, 16 at a time in a ring of three or four tiles. What bounds it is memory:
//   the tensor cores, mostly idle rows, have less than half of a tile's time to do.
//   Dao et al. 2023, "Flash-Decoding for long-context inference", https://pytorch.org/blog/flash-decoding/
#include "attention/kv_cache/split_kernel.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

const char* takes(const KvCacheArgs& a) { return takes_split<SplitKvTile>(a, /*e4m3_cache=*/false); }

void launch(const KvCacheArgs& a, cudaStream_t stream) { launch_split<SplitKvTile>(a, stream); }

const Register<KvCacheArgs> registered{"split_kv", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
