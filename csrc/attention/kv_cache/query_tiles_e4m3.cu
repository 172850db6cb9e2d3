// Several new tokens, or a chunk of a prompt, after a cache in e4m3: query_tiles with keys and values widened between shared
// memory and the tensor cores.
//   Every warp widens all of a tile for its 16 queries. Bound: those instructions.
#include "attention/kv_cache/split_kernel.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

const char* takes(const KvCacheArgs& a) { return takes_split<QueryTilesE4m3Tile>(a, /*e4m3_cache=*/true); }

bool suits(const KvCacheArgs& a) { return suits_query_tiles(a, /*bytes=*/1); }

void launch(const KvCacheArgs& a, cudaStream_t stream) { launch_split<QueryTilesE4m3Tile>(a, stream); }

const Register<KvCacheArgs> registered{"query_tiles_e4m3", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
