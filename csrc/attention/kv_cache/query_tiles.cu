// Several new tokens, or a chunk of a prompt, after a cache in 16 bits: 64 queries share a pass over the keys.
//   The four warps of a block have 16 queries each and the same keys, up to 64 at a time; longer chunks are cut into more
//   tiles, which blocks share out like keys. Bound: memory up to some 64 queries a head of keys, then the tensor cores.
#include "attention/kv_cache/split_kernel.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

const char* takes(const KvCacheArgs& a) { return takes_split<QueryTilesTile>(a, /*e4m3_cache=*/false); }

bool suits(const KvCacheArgs& a) { return suits_query_tiles(a, /*bytes=*/2); }

void launch(const KvCacheArgs& a, cudaStream_t stream) { launch_split<QueryTilesTile>(a, stream); }

const Register<KvCacheArgs> registered{"query_tiles", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
