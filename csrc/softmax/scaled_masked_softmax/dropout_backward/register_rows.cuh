// The row in the registers of its threads, for `warp`, `block` and `cluster`: read once, exponentials and dropped
// elements found once.
#pragma once

#include "softmax/scaled_masked_softmax/dropout_backward/operands.cuh"

namespace warpsmith {

// The longest row of `block`.
inline constexpr int64_t kMostBlockCols = 16384;

// Makes the compiler forget where a value came from: it would find it anew wherever it is used.
template <class T>
__device__ __forceinline__ void settle(T*& value) {
  asm volatile("" : "+l"(value));
}
__device__ __forceinline__ void settle(uint32_t& value) { asm volatile("" : "+r"(value)); }
__device__ __forceinline__ void settle(uint64_t& value) { asm volatile("" : "+l"(value)); }
// One that is the same for all lanes, or true for all where it is for one.
__device__ __forceinline__ void settle(bool& value) { value = __any_sync(kAllLanes, value); }

// --- exponentials ----------------------------------------------------------------------------------------------------

// e^(z - base) for logits z = x * scale + bias.
//
// 16-bit data: as 2^(z * log2(e) - base * log2(e)), and without a bias as 2^(x * (scale * log2(e)) - base * log2(e)). What
// rounding takes from the constants is the same for the whole row, or in proportion to differences of logits; the sum,
// taken again, makes up for the former. Where the base is too large for that, the difference comes first.
template <class T, bool biased>
struct RowExponent {
  static constexpr float kLog2e = 1.44269504f, kFar = 0x1p20f, kMostScale = 0x1p100f;
  float base, scale, slope, shift;
  bool far;

  __device__ __forceinline__ RowExponent(float lse, float scale)
      : base(finite_base(lse)),
        scale(scale),
        slope(biased ? kLog2e : scale * kLog2e),
        shift(-base * kLog2e),
        far(sizeof(T) == 2 && !(fabsf(base) < kFar && (biased || fabsf(scale) < kMostScale))) {}

  // The logits of a pack, from x and the bias in z.
  template <int n>
  __device__ __forceinline__ void find_logits(float (&z)[n], const Pack<T>& x) const {
    float value[n];
    to_float(value, x);
#pragma unroll
    for (int j = 0; j < n; ++j) z[j] = biased ? fmaf(value[j], scale, z[j]) : value[j] * scale;
  }

  // Exponents of 2, of 16-bit data.
  template <int n>
  __device__ __forceinline__ void near(float (&z)[n], const Pack<T>& x) const {
    if constexpr (biased) {
      find_logits(z, x);
    } else {
      to_float(z, x);
    }
#pragma unroll
    for (int j = 0; j < n; ++j) z[j] = fmaf(z[j], slope, shift);
  }
  template <int n>
  __device__ __forceinline__ void distant(float (&z)[n], const Pack<T>& x) const {
    find_logits(z, x);
#pragma unroll
    for (int j = 0; j < n; ++j) z[j] = (z[j] - base) * kLog2e;
  }

  template <int n>
  __device__ __forceinline__ void raise(float (&z)[n]) const {
#pragma unroll
    for (int j = 0; j < n; ++j) z[j] = sizeof(T) == 4 ? exp_of_difference(z[j], base) : ptx::exp2_approx_ftz(z[j]);
  }
};

// --- dropout ---------------------------------------------------------------------------------------------------------

// Dropout::keeps_group for the packs of a thread. Tensors of fewer than 2^34 elements have fewer than 2^32 groups of four:
// what the upper word of a group's number decides is then the same for all of them.
class ThreadDropout {
 public:
  // group: number of the thread's first group in the tensor; of larger tensors, see move_to.
  __device__ __forceinline__ ThreadDropout(const Dropout& dropout, uint32_t group)
      : dropout_(dropout), group_(group), second_x_(second_x(0)) {}

  // What comes next is asked for a group of that upper word.
  __device__ __forceinline__ void move_to(uint32_t upper) { second_x_ = second_x(upper); }

  // Of packs that begin `groups` groups after the thread's first; round by round, so that all share a look at the keys.
  template <int packs, int n>
  __device__ __forceinline__ void keeps_groups(bool (&kept)[packs][n], const uint32_t (&groups)[packs]) const {
    static_assert(n % 4 == 0, "one call of the generator serves four elements");
    const uint2* keys = dropout_.keys;
    uint4 words[packs * n / 4];
#pragma unroll
    for (int i = 0; i < packs * n / 4; ++i) words[i] = second_round(group_ + groups[i / (n / 4)] + i % (n / 4));
#pragma unroll
    for (int round = 2; round < kPhiloxRounds; ++round) {
#pragma unroll
      for (uint4& counter : words) counter = philox_round(counter, keys[round]);
    }
#pragma unroll
    for (int i = 0; i < packs * n / 4; ++i) {
      bool* four = &kept[i / (n / 4)][i % (n / 4) * 4];
      four[0] = words[i].x > dropout_.last_dropped;
      four[1] = words[i].y > dropout_.last_dropped;
      four[2] = words[i].z > dropout_.last_dropped;
      four[3] = words[i].w > dropout_.last_dropped;
    }
  }

 private:
  // The product of the second round's word x.
  __device__ __forceinline__ uint64_t second_x(uint32_t upper) const {
    return kPhiloxMultiplierX * (dropout_.first_x ^ upper);
  }

  // What Dropout::words makes of the lower word of a group's number in two rounds.
  __device__ __forceinline__ uint4 second_round(uint32_t group) const {
    const uint2* keys = dropout_.keys;
    const uint64_t x = kPhiloxMultiplierX * group, z = kPhiloxMultiplierZ * (high_word(x) ^ keys[0].y);
    return {high_word(z) ^ keys[1].x, low_word(z), high_word(second_x_) ^ keys[1].y ^ low_word(x), low_word(second_x_)};
  }

  const Dropout& dropout_;
  uint32_t group_;
  uint64_t second_x_;
};

// --- sums ------------------------------------------------------------------------------------------------------------

// Over `lanes` neighbours. peaked: whether any lane of the warp has a peak; the sums of others are then 0.
template <int lanes>
__device__ __forceinline__ GradientSums warp_sums(const GradientSums& own, bool peaked) {
  float both[2] = {own.exponential, own.product};
  if constexpr (lanes > 4) {
    warp_reduce_all<lanes>(both);
  } else {
    for (float& sum : both) sum = warp_reduce<lanes>(sum);
  }
  GradientSums sums{both[0], both[1]};
  if (peaked) {
    sums.peaks = warp_reduce<lanes>(own.peaks);
    sums.peak_exponential = warp_reduce<lanes>(own.peak_exponential);
    sums.peak_product = warp_reduce<lanes>(own.peak_product);
    sums.peak_grad = warp_reduce<lanes>(own.peak_grad);
  }
  return sums;
}

struct SharedSums {
  float4 sums[kWarp];  // exponential, product, peaks, peak_exponential
  float2 rest[kWarp];  // peak_product, peak_grad; only where there are peaks
};

// Over the block, of a power of two of warps at most; every thread gets them.
template <class Tile>
__device__ __forceinline__ GradientSums block_sums(const GradientSums& own, bool peaked, SharedSums& shared) {
  const GradientSums sums = warp_sums<kWarp>(own, peaked);
  constexpr int kWarps = Tile::threads / kWarp;
  const int count = Tile::cut ? blockDim.x / kWarp : kWarps;
  if (count == 1) return sums;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, from = lane % kWarps;
  if (lane == 0) {
    shared.sums[warp] = {sums.exponential, sums.product, sums.peaks, sums.peak_exponential};
    if (peaked) shared.rest[warp] = {sums.peak_product, sums.peak_grad};
  }
  __syncthreads();
  const float4 four = from < count ? shared.sums[from] : float4{};
  GradientSums part{four.x, four.y, four.z, four.w};
  const bool any = __any_sync(kAllLanes, part.peaks != 0.0f);
  if (any && part.peaks != 0.0f) {
    const float2 two = shared.rest[from];
    part.peak_product = two.x;
    part.peak_grad = two.y;
  }
  return warp_sums<kWarps>(part, any);
}

// --- the row ---------------------------------------------------------------------------------------------------------

// What a thread holds of its row.
template <class Tile, class B, class T>
struct Held {
  static constexpr int kWidth = kPack<T>;
  Pack<T> x[Tile::packs], grad[Tile::packs];  // undefined behind the live columns; grad becomes 0 where dropped
  BiasPack<B, kWidth> bias[Tile::packs];
  MaskPack<kWidth> hidden[Tile::packs];
  float e[Tile::packs][kWidth];

  template <class Use>
  static __device__ __forceinline__ void for_each_live(const LogitPlace<Tile>& place, int live, Use use) {
#pragma unroll
    for (int i = 0; i < Tile::packs; ++i) {
      if (place.template col<T>(i) < live) use(i, place.template first_col<T>(i));
    }
  }
};

// What of a row's logits and dropout does not depend on the column.
template <class T, bool biased>
struct RowState {
  RowExponent<T, biased> exponent;
  ThreadDropout dropout;
  int64_t start;  // number of the thread's first element in the tensor
  int live;
  bool masked, drops;
};

// Exponentials of pack i. uneven: the row is not whole, its lse is far from 0, or the upper words of its groups' numbers
// are not 0.
template <bool uneven, class Tile, class B, class T>
__device__ __forceinline__ void find_exponentials(Held<Tile, B, T>& held, int i, const LogitPlace<Tile>& place,
                                                  RowState<T, !std::is_void_v<B>>& row) {
  constexpr int kWidth = kPack<T>;
  float (&e)[kWidth] = held.e[i];
  bool masked = row.masked;
  if constexpr (uneven) {
    const int left = row.live - place.template col<T>(i);
    cut_off<T>(held.hidden[i], held.grad[i], left);
    masked |= left < kWidth;
  }
  if constexpr (sizeof(T) == 2) {
    held.bias[i].to_floats(e);
    if (uneven && row.exponent.far) {
      row.exponent.distant(e, held.x[i]);
    } else {
      row.exponent.near(e, held.x[i]);
    }
  }
  if (masked) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) e[j] = held.hidden[i][j] ? -kInfinity : e[j];
  }
  row.exponent.raise(e);
}

// Exponentials of all packs, what is dropped of their gradients, and the sums.
template <bool uneven, class Tile, class B, class T>
__device__ __forceinline__ GradientSums add_packs(Held<Tile, B, T>& held, const LogitPlace<Tile>& place,
                                                  RowState<T, !std::is_void_v<B>>& row) {
  constexpr int kPacks = Tile::packs, kWidth = kPack<T>, kTogether = !uneven && kPacks % 2 == 0 ? 2 : 1;
  float exponential[2] = {}, product[2] = {};
#pragma unroll
  for (int begin = 0; begin < kPacks; begin += kTogether) {
    if (uneven && place.template jumps_over<T>(begin, row.live)) continue;
    uint32_t groups[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      find_exponentials<uneven>(held, begin + i, place, row);
      groups[i] = place.template first_col<T>(begin + i) / 4;
    }
    if (row.drops) {
      if (uneven) row.dropout.move_to(high_word(static_cast<uint64_t>(row.start) / 4 + groups[0]));
      bool kept[kTogether][kWidth];
      row.dropout.keeps_groups(kept, groups);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) drop<T>(held.grad[begin + i], kept[i]);
    }
#pragma unroll
    for (int i = begin; i < begin + kTogether; ++i) {
      float g[kWidth];
      to_float(g, held.grad[i]);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        exponential[j % 2] += held.e[i][j];
        product[j % 2] = fmaf(held.e[i][j], g[j], product[j % 2]);
      }
      keep_packed(held.grad[i]);
    }
  }
  return {exponential[0] + exponential[1], product[0] + product[1]};
}

// reduce: sums over the threads that share the row, given whether any lane of the warp has a peak.
template <class Tile, class B, class T, class Reduce>
__device__ __forceinline__ void dropout_backward_row(const RegisterRows<T>& v, Reduce reduce) {
  constexpr int kPacks = Tile::packs, kWidth = kPack<T>;
  constexpr bool kBiased = !std::is_void_v<B>;
  const LogitRows<T>& logits = v.logits;
  const LogitPlace<Tile> place;
  const bool exists = Tile::rows_per_block == 1 || place.row < logits.rows;
  const RowPlace at(v, static_cast<uint32_t>(place.row));
  uint32_t row = at.row;
  settle(row);
  const int cols = static_cast<int>(logits.cols), offset = place.template col<T>(0);
  int live = 0;
  if (exists) live = logits.causal ? causal_columns(static_cast<int>(row), cols, logits.queries) : cols;

  // load
  uint64_t policy = v.load_policy();
  settle(policy);
  const float lse = exists ? v.lse[row] : 0.0f;
  // of the row, from the thread's first column on: [cols - offset]
  const T *gX = logits.x + row * logits.x_stride + offset, *gGrad = v.grad + row * v.grad_stride + offset;
  settle(gX);
  settle(gGrad);
  Held<Tile, B, T> held;
  held.for_each_live(place, live, [&](int i, int first) {
    load_with_policy(held.x[i], gX + first, policy);
    load_with_policy(held.grad[i], gGrad + first, policy);
  });
  if constexpr (kBiased) {
    const B* gBias = static_cast<const B*>(logits.bias.data) + at.bias;  // [cols], or one for the row
    if (logits.bias.one_per_row) {
      const B value = live > 0 ? *gBias : B{};
#pragma unroll
      for (int i = 0; i < kPacks; ++i) held.bias[i].fill(value);
    } else {
      gBias += offset;
      settle(gBias);
      held.for_each_live(place, live, [&](int i, int first) { held.bias[i].load_from(gBias, first, policy); });
    }
  }
  const RowExponent<T, kBiased> exponent(lse, logits.scale);
  if constexpr (sizeof(T) == 4) {  // before the mask takes registers
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      held.bias[i].to_floats(held.e[i]);
      if (!place.template jumps_over<T>(i, live)) exponent.find_logits(held.e[i], held.x[i]);
    }
  }
  const uint8_t* gMask = static_cast<const uint8_t*>(logits.mask.data) + at.mask;  // [cols], or one for the row
  if (v.masks_columns) {
    gMask += offset;
    settle(gMask);
    held.for_each_live(place, live, [&](int i, int first) { held.hidden[i].load_from(gMask, first, policy); });
  } else if (logits.mask.data != nullptr && live > 0 && *gMask != 0) {
    live = 0;
  }

  // exponentials and sums
  const int64_t start = row * logits.cols + offset;
  const uint32_t group = row * (static_cast<uint32_t>(cols) / 4) + offset / 4;
  RowState<T, kBiased> state{exponent, ThreadDropout(v.dropout, group), start, live, v.masks_columns, v.dropout.active};
  settle(state.masked);
  settle(state.drops);
  bool uneven = v.far_groups || exponent.far || live < place.lanes() * (kPacks * kWidth);
  settle(uneven);
  GradientSums own;
  if (sizeof(T) == 2 && !uneven) {
    own = add_packs<false>(held, place, state);
  } else {
    own = add_packs<true>(held, place, state);
  }
  const bool peaked = own.exponential > GradientSums::kPeak;
  bool any_peaked = peaked;
  settle(any_peaked);
  if (any_peaked && peaked) {
    own = {};
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (place.template jumps_over<T>(i, live)) continue;
      float g[kWidth];
      to_float(g, held.grad[i]);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) own.add(held.e[i][j], g[j]);
      keep_packed(held.grad[i]);
    }
  }
  const GradientSums sums = reduce(own, any_peaked);
  if (!exists) return;

  // write
  const GradientFactors factors(v, row, sums);
  T* gDx = v.dx + start;  // [cols - offset]
  settle(gDx);
  if (!(uneven | factors.none | factors.rare)) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      write_gradient<T, false>(gDx + place.template first_col<T>(i), held.e[i], held.grad[i], factors, kWidth);
    }
    return;
  }
  const int written = factors.none ? 0 : live;
  const auto write = [&]<class Rare>(Rare) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int first = place.template first_col<T>(i), col = offset + first;
      if (col >= cols) continue;
      if (first < written) {
        write_gradient<T, Rare::value>(gDx + first, held.e[i], held.grad[i], factors, live - col);
      } else {
        write_zeros(gDx + first);
      }
    }
  };
  if (factors.rare) {
    write(std::true_type{});
  } else {
    write(std::false_type{});
  }
}

}  // namespace warpsmith
