// Sums of a product through tile/store_staged.cuh: with alpha, c and the activation, or as partial sums.
#pragma once

#include <type_traits>

#include "gemm/epilogue.cuh"
#include "gemm/split.cuh"
#include "tile/store_staged.cuh"

namespace warpsmith {

// Where the sums go, and what becomes of them first.
enum class Finish {
  round,   // d = a b
  all,     // alpha, c and the activation
  partial  // f32 to the workspace, for split.cuh to add up
};

// How the call finishes its sums.
__device__ __forceinline__ Finish finish_of(const GemmArgs& p, const Split& split) {
  if (split.count > 1 || p.wide) return Finish::partial;
  const bool alone = p.c.data == nullptr && p.alpha == 1.0f && p.activation == Activation::none;
  return alone ? Finish::round : Finish::all;
}

// What is added to eight columns of one row after another, `step` rows apart, while they are `left`.
template <class T, int step>
class AddendRows {
 public:
  __device__ __forceinline__ AddendRows(const GemmArgs& p, int64_t batch, int64_t row, int64_t col, int left, int count)
      : p_(p), from_(static_cast<const T*>(p.c.data)), left_(left), count_(count) {
    constexpr int64_t kSize = sizeof(T);
    const int64_t starts = reinterpret_cast<int64_t>(p.c.data) | p.c.row * kSize | p.c.batch * kSize;
    packs_ = p.c.col == 1 && p.n % 8 == 0 && starts % 16 == 0;
    from_ += batch * p.c.batch + row * p.c.row + col * p.c.col;
    if (p.c.data == nullptr) left_ = 0;
  }

  __device__ __forceinline__ void read_next(Vec<T, 8>& to) {
    if (left_ > 0) {
      if (packs_) [[likely]] {
        load(to, from_);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (i < count_) to[i] = from_[i * p_.c.col];
        }
      }
    }
    left_ -= step;
    from_ += step * p_.c.row;
  }

 private:
  const GemmArgs& p_;
  const T* from_;
  int left_, count_;
  bool packs_;
};

// alpha, c and the activation.
template <class T>
struct GemmFinisher {
  using Staged = float;
  static constexpr bool kReads = true;
  const GemmArgs& p;

  template <int step>
  struct Rows : AddendRows<T, step> {
    __device__ __forceinline__ Rows(const GemmFinisher& finisher, int64_t batch, int64_t row, int64_t col, int left,
                                    int count)
        : AddendRows<T, step>(finisher.p, batch, row, col, left, count) {}
  };

  __device__ __forceinline__ void add(float (&sums)[8], const Vec<T, 8>& addends) const {
    float wide[8];
    to_float(wide, addends);
    scale_and_add(p, sums, wide);
  }
  template <int n>
  __device__ __forceinline__ void apply(float* sums) const {
    activate<false, n>(p.activation, sums);
  }
};

// Stores the warp's sums in `out`: one product's d, or its partial sums.
template <Finish how, int rows, class Out, class T, class Acc, class Tile>
__device__ __forceinline__ void store_staged_as(Out* out, const GemmArgs& p, const WarpSums<T, Acc, Tile>& warp,
                                                void* patches, const Place<Tile>& block,
                                                int thread_in_block = static_cast<int>(threadIdx.x)) {
  if constexpr (how == Finish::all) {
    store_finished<rows>(out, p, GemmFinisher<T>{p}, warp, patches, block, thread_in_block);
  } else {
    using Staged = std::conditional_t<how == Finish::round, T, float>;
    store_finished<rows>(out, p, NoFinisher<Staged>{}, warp, patches, block, thread_in_block);
  }
}

// Stores the warp's sums of the block's tile and its slice of k, blockIdx.y. They pass through `patches`, a StorePatch for
// each warp in shared memory that nobody else uses any longer.
template <int rows = 32, class T, class Acc, class Tile>
__device__ __forceinline__ void store_staged(const GemmArgs& p, const Split& split, const WarpSums<T, Acc, Tile>& warp,
                                             void* patches, const Place<Tile>& block) {
  T* d = static_cast<T*>(p.d) + block.batch() * p.m * p.n;
  switch (finish_of(p, split)) {
    case Finish::round:
      return store_staged_as<Finish::round, rows>(d, p, warp, patches, block);
    case Finish::all:
      return store_staged_as<Finish::all, rows>(d, p, warp, patches, block);
    case Finish::partial:
      float* partial = partial_sums(p, blockIdx.y, block.batch());
      return store_staged_as<Finish::partial, rows>(partial, p, warp, patches, block);
  }
}

}  // namespace warpsmith
