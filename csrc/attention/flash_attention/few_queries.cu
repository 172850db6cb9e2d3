// A few queries after many keys: decoding, drafted tokens, in 16 bits.
//   Against `mma_peak`: a block of that has a head to itself, and reads its keys one tile after the other, for 64 queries or
//   more though there are few. Here the keys of all heads are shared out evenly among the blocks that the GPU holds at once,
//   and the queries that share a head of keys are packed into one tile of 16. The kernel is that of a cache
//   (attention/kv_cache/split_kernel.cuh), to which a mask comes. Bound: memory.
//   Idea: Flash-Decoding (https://crfm.stanford.edu/2023/10/12/flashdecoding.html).
#include "attention/flash_attention/few_queries.h"

#include "attention/kv_cache/split_kernel.cuh"
#include "host/conditions.h"
#include "host/registry.h"

namespace warpsmith {

__device__ __forceinline__ int64_t tokens_of(const FewQueriesArgs& a, int) { return a.appended; }

__device__ __forceinline__ bool is_masked(const FewQueriesArgs& a) { return a.mask.mask != nullptr; }

// Which of a lane's scores of a tile that begins at `key` the mask leaves, bit 4 j + i for value i of s[j]; all without one.
// All but the key is computed anew for every tile, one score after the other: what is kept, and what is done at once, takes
// registers of calls without a mask.
template <class Tile>
__device__ __forceinline__ uint32_t unmasked_scores(const FewQueriesArgs& a, const Work& w, int first_row, int kv_head,
                                                    int key) {
  static_assert(Tile::keys <= 64, "a bit for each score of a lane");
  if (!is_masked(a)) return ~0u;
  const OwnRows rows(a, first_row, kv_head);
  const int lane_key = key + 2 * (thread_again() % 4);
  uint32_t seen = 0;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const uint8_t* of_query = a.mask.mask + w.batch * a.mask.mask_batch + rows.head[row] * a.mask.mask_head +
                              rows.token[row] * a.mask.mask_query;
#pragma unroll 1
    for (int i = 0; i < Tile::keys / 4; ++i) {
      const int own = lane_key + i / 2 * 8 + i % 2;
      const bool sees = own < w.n && of_query[own * a.mask.mask_key] != 0;
      seen |= static_cast<uint32_t>(sees) << (i / 2 * 4 + 2 * row + i % 2);
    }
  }
  return seen;
}

namespace {

const char* takes(const AttentionArgs& a) {
  if (a.dtype == Dtype::f32) return "takes 16-bit floats, got f32";
  if (a.d % 8 != 0 || a.dv % 8 != 0) return "needs head dimensions that are multiples of 8";
  if (std::max(a.d, a.dv) > 256) return "needs head dimensions of at most 256";
  if (a.cu_q != nullptr) return "needs sequences of one length";
  const bool more = a.gate.data != nullptr || a.score.bias != nullptr || a.mask.q_documents != nullptr;
  if (more || a.dropout.active || a.max_logits != nullptr) {
    return "takes no bias, gate, documents, dropout or largest scores";
  }
  const FewQueriesArgs args = as_few_queries(a);
  const char* reason = nullptr;
  dispatch_split<FewQueriesTile>(args, [&]<class T, class Tile>() { reason = needs_countable_rounds<Tile>(args); });
  return reason;
}

// One block for two tiles of 16 would read keys once: they are two only where one finds in L2 what the other reads. Which
// rung a query gets must not depend on the others where its bits must not.
bool suits(const AttentionArgs& a) {
  if (a.batch_invariant || a.n < kFewestSharedKeys) return false;
  const int64_t rows = int64_t{a.m} * (a.q_heads / a.kv_heads);
  if (rows <= kFewQueries) return true;
  const int64_t bytes = int64_t{a.batch} * a.n * a.kv_heads * (a.d + a.dv) * 2;
  return rows <= kMostPairedQueries && bytes <= kMostPairedBytes;
}

void launch(const AttentionArgs& a, cudaStream_t stream) {
  FewQueriesArgs args = as_few_queries(a);
  args.workspace = a.workspace;
  launch_split<FewQueriesTile>(args, stream);
}

const Register<AttentionArgs> registered{"few_queries", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
