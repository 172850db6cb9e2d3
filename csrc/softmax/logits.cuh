// Device side of logits.h: where a row's operands lie, its logits one by one or in registers.
#pragma once

#include <type_traits>

#include "device/convert.h"
#include "device/ptx/math.h"
#include "device/ptx/memory.h"
#include "softmax/causal.cuh"
#include "softmax/logit_tile.cuh"
#include "softmax/logits.h"

namespace warpsmith {

inline constexpr float kInfinity = __builtin_huge_valf();

__device__ __forceinline__ float exp_of(float x) {
  constexpr float kLog2e = 1.44269504f;
  return ptx::exp2_approx_ftz(x * kLog2e);
}

// What is subtracted from logits before e is raised to them: the row's maximum, or its log-sum-exp. Without any logit it
// is -inf: the row gets e^-inf, and not e^(-inf + inf).
__device__ __forceinline__ float finite_base(float base) { return base == -kInfinity ? 0.0f : base; }

// e^(z - base).
__device__ __forceinline__ float exp_below(float z, float base) { return exp_of(z - finite_base(base)); }

struct MaxNan {
  __device__ __forceinline__ float operator()(float a, float b) const { return ptx::max_nan(a, b); }
};

// 1 / sum for the row's entries; 0 for a row without any logit.
__device__ __forceinline__ float reciprocal_sum(float sum) { return sum == 0.0f ? 0.0f : __frcp_rn(sum); }

// What one row reads.
template <class T>
struct LogitRow {
  const T* x = nullptr;  // [cols]
  int64_t bias = 0;      // offset of the row of the bias, in elements
  int64_t mask = 0;      // the same of the mask
  int64_t live = 0;      // columns before this one count; those behind it are excluded
};

template <class T>
struct LogitRows {
  const T* x;  // [rows, cols], x_stride elements apart
  LeadingSizes leading;
  BroadcastOperand bias, mask;
  FastDivide queries;
  int64_t rows, cols, x_stride;
  float scale;
  bool causal;
  bool bias_is_f32;
  bool beyond_l2;      // x alone would fill L2
  FastDivide repeats;  // how many rows, `period` apart, share each row of the bias; 1 where they need no turns
  int64_t period;

  explicit LogitRows(const LogitArgs& a)
      : x(static_cast<const T*>(a.x)),
        leading(a.leading),
        bias(a.bias),
        mask(a.mask),
        queries(static_cast<uint64_t>(a.queries)),
        rows(a.rows),
        cols(a.cols),
        x_stride(a.x_stride),
        scale(a.scale),
        causal(a.causal),
        bias_is_f32(a.bias_dtype == Dtype::f32),
        beyond_l2(a.rows * a.cols * size_of(a.dtype) >= kL2Bytes),
        repeats(static_cast<uint64_t>(far_repeats(a))),
        period(a.rows / static_cast<int64_t>(repeats.divisor)) {}

  // A bias of a quarter of L2 or more is gone from there when its rows are asked for again. Short rows are read best in
  // the order in which they lie, all the same.
  static int64_t far_repeats(const LogitArgs& a) {
    constexpr int64_t kLeastRowBytes = 1024;
    if (a.bias.data == nullptr || a.bias.one_per_row || a.cols * size_of(a.dtype) < kLeastRowBytes) return 1;
    int rank = a.leading.rank;
    while (rank > 0 && a.bias.stride[rank - 1] == 0) --rank;
    int64_t period = 1, distinct = 1;  // rows until the bias begins again, and rows of it among them
    for (int d = 0; d < rank; ++d) {
      const auto size = static_cast<int64_t>(a.leading.size[d].divisor);
      period *= size;
      if (a.bias.stride[d] != 0) distinct *= size;
    }
    return distinct * a.cols * size_of(a.bias_dtype) >= kL2Bytes / 4 ? a.rows / period : 1;
  }

  // The row whose turn comes at place `at`, of fewer than 2^31: those that share a row of the bias come together, so that
  // it is read from DRAM once.
  __device__ __forceinline__ int64_t turn(int64_t at) const {
    if (repeats.divisor == 1 || at >= rows) return at;
    const uint32_t place = static_cast<uint32_t>(at), first = repeats.small_quotient(place);
    return (place - first * static_cast<uint32_t>(repeats.divisor)) * period + first;
  }

  // Long streams leave L2 to what has to stay; bias and mask are read with the same policy, or x would push them out.
  __device__ uint64_t load_policy() const { return beyond_l2 ? ptx::policy_evict_last() : ptx::policy_evict_normal(); }

  // A row that the mask excludes as a whole has no live column. Rows past the last one have none either.
  // Int: what numbers of rows and columns are computed in; int for fewer than 2^31 rows of at most kClusterBytes.
  template <class Int = int64_t>
  __device__ __forceinline__ LogitRow<T> row(int64_t row) const {
    LogitRow<T> r;
    if (row >= rows) return r;
    r.x = x + row * x_stride;
    r.live = causal ? causal_columns(static_cast<Int>(row), static_cast<Int>(cols), queries) : cols;
    if (bias.data == nullptr && mask.data == nullptr) return r;
    Int rest = static_cast<Int>(row);
#pragma unroll
    for (int d = 0; d < kMostLeading; ++d) {
      Int index = rest;
      if (d + 1 < leading.rank) {
        rest = leading.size[d].quotient_as(rest);
        index -= rest * static_cast<Int>(leading.size[d].divisor);
      }
      // an index is not negative: the cheaper product
      using Index = std::make_unsigned_t<Int>;
      r.bias += static_cast<int64_t>(static_cast<Index>(index)) * bias.stride[d];
      r.mask += static_cast<int64_t>(static_cast<Index>(index)) * mask.stride[d];
      if (d + 1 >= leading.rank) break;
    }
    if (mask.data != nullptr && mask.one_per_row && static_cast<const uint8_t*>(mask.data)[r.mask] != 0) r.live = 0;
    return r;
  }

  __device__ __forceinline__ bool masks_columns() const { return mask.data != nullptr && !mask.one_per_row; }

  __device__ __forceinline__ float bias_at(int64_t i) const {
    return bias_is_f32 ? static_cast<const float*>(bias.data)[i] : to_float(static_cast<const T*>(bias.data)[i]);
  }

  // The logit of a live column.
  __device__ __forceinline__ float logit(const LogitRow<T>& r, int64_t col) const {
    if (masks_columns() && static_cast<const uint8_t*>(mask.data)[r.mask + col] != 0) return -kInfinity;
    const float value = to_float(r.x[col]);
    if (bias.data == nullptr) return value * scale;
    return fmaf(value, scale, bias_at(r.bias + (bias.one_per_row ? 0 : col)));
  }
};

// n values of the mask as they lie in memory: as bytes, each would get a register of its own.
template <int n>
struct MaskPack {
  uint32_t word[n / 4] = {};

  __device__ __forceinline__ bool operator[](int i) const { return (word[i / 4] & 0xffu << i % 4 * 8) != 0; }

  __device__ __forceinline__ void load_from(const void* mask, int64_t at, uint64_t policy) {
    static_assert(n == 4 || n == 8, "an access moves 4 or 8 bytes");
    const uint8_t* from = static_cast<const uint8_t*>(mask) + at;
    if constexpr (n == 4) {
      word[0] = ptx::load_cached(reinterpret_cast<const uint32_t*>(from), policy);
    } else {
      const uint2 both = ptx::load_cached(reinterpret_cast<const uint2*>(from), policy);
      word[0] = both.x;
      word[1] = both.y;
    }
  }
};

// 16 bytes of the bias.
template <class B, int n>
__device__ __forceinline__ void load_bias(Vec<B, n>& to, const void* bias, int64_t at, uint64_t policy) {
  static_assert(sizeof(to) == 16);
  const B* from = static_cast<const B*>(bias) + at;
  reinterpret_cast<uint4&>(to) = ptx::load_cached(reinterpret_cast<const uint4*>(from), policy);
}

// The bias of the thread's packs.
template <class Tile, class T>
__device__ __forceinline__ void read_bias(float (&z)[Tile::packs][kPack<T>], const LogitRows<T>& v,
                                          const LogitRow<T>& r, const LogitPlace<Tile>& place, uint64_t policy) {
  constexpr int kPacks = Tile::packs, kWidth = kPack<T>;
  const int live = static_cast<int>(r.live);
  const int64_t at = r.bias + place.template col<T>(0);
  if (v.bias.one_per_row) {
    const float value = live > 0 ? v.bias_at(r.bias) : 0.0f;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) z[i][j] = value;
    }
  } else if (v.bias_is_f32) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (place.template col<T>(i) >= live) continue;
#pragma unroll
      for (int j = 0; j < kWidth; j += 4) {
        load_bias(reinterpret_cast<Vec<float, 4>&>(z[i][j]), v.bias.data, at + place.template first_col<T>(i) + j,
                  policy);
      }
    }
  } else {
    Pack<T> raw[kPacks];
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (place.template col<T>(i) < live) {
        load_bias(raw[i], v.bias.data, at + place.template first_col<T>(i), policy);
      }
    }
#pragma unroll
    for (int i = 0; i < kPacks; ++i) to_float(z[i], raw[i]);
  }
}

// The logits of the thread's packs, on their way from memory. Biased: whether there is a bias.
template <class Tile, class Biased, class T>
class LogitReader {
  static constexpr int kPacks = Tile::packs, kWidth = kPack<T>;

 public:
  __device__ __forceinline__ LogitReader(const LogitRows<T>& v, const LogitRow<T>& r, const LogitPlace<Tile>& place,
                                         uint64_t policy)
      : v_(v),
        r_(r),
        place_(place),
        policy_(policy),
        live_(static_cast<int>(r.live)),
        start_(place.template col<T>(0)),
        masked_(v.masks_columns()) {}

  // x, and the bias into z.
  __device__ __forceinline__ void load(float (&z)[kPacks][kWidth]) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if constexpr (!Biased::value) reinterpret_cast<uint4&>(x_[i]) = uint4{};  // or ptxas spills long rows of f32
      if (place_.template col<T>(i) < live_) {
        load_with_policy(x_[i], r_.x + start_ + place_.template first_col<T>(i), policy_);
      }
    }
    if constexpr (Biased::value) read_bias(z, v_, r_, place_, policy_);
  }

  __device__ __forceinline__ void load_mask() {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (masked_ && place_.template col<T>(i) < live_) {
        hidden_[i].load_from(v_.mask.data, r_.mask + start_ + place_.template first_col<T>(i), policy_);
      }
    }
  }

  // Makes the bias of pack i its logits.
  __device__ __forceinline__ void scale(float (&z)[kWidth], int i) const {
    float value[kWidth];
    to_float(value, x_[i]);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) z[j] = Biased::value ? fmaf(value[j], v_.scale, z[j]) : value[j] * v_.scale;
  }

  __device__ __forceinline__ void mask(float (&z)[kWidth], int i) const {
    if (!masked_) return;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) z[j] = hidden_[i][j] ? -kInfinity : z[j];
  }

 private:
  const LogitRows<T>& v_;
  const LogitRow<T>& r_;
  const LogitPlace<Tile>& place_;
  uint64_t policy_;
  int live_, start_;
  bool masked_;
  Pack<T> x_[kPacks];  // undefined or 0 behind the live columns
  MaskPack<kWidth> hidden_[kPacks];
};

// Excludes what a pack holds from element `left` on: it lies behind the live columns.
template <int n>
__device__ __forceinline__ void cut_off(float (&z)[n], int64_t left) {
  if (left < n) {
#pragma unroll
    for (int j = 0; j < n; ++j) z[j] = j >= left ? -kInfinity : z[j];
  }
}

// The logits of the thread's packs, -inf behind the live columns; packs that are jumped over stay undefined.
template <class Tile, class Biased, class T>
__device__ __forceinline__ void read_logits(float (&z)[Tile::packs][kPack<T>], const LogitRows<T>& v,
                                            const LogitRow<T>& r, const LogitPlace<Tile>& place) {
  const int live = static_cast<int>(r.live);
  LogitReader<Tile, Biased, T> reader(v, r, place, v.load_policy());
  reader.load(z);
  if constexpr (!Biased::value) reader.load_mask();
#pragma unroll
  for (int i = 0; i < Tile::packs; ++i) {
    if (!place.template jumps_over<T>(i, live)) reader.scale(z[i], i);
  }
  if constexpr (Biased::value) reader.load_mask();  // not before: the bias takes the registers
#pragma unroll
  for (int i = 0; i < Tile::packs; ++i) {
    if (place.template jumps_over<T>(i, live)) continue;
    reader.mask(z[i], i);
    cut_off(z[i], live - place.template col<T>(i));
  }
}

// A pack of logits that lies before the end of the live columns, or across it.
template <class T, class Biased>
__device__ __forceinline__ void read_pack(float (&z)[kPack<T>], const LogitRows<T>& v, const LogitRow<T>& r,
                                          int64_t col) {
  constexpr int kWidth = kPack<T>;
  const uint64_t policy = ptx::policy_evict_normal();
  Pack<T> raw;
  load(raw, r.x + col);
  MaskPack<kWidth> hidden;
  if (v.masks_columns()) hidden.load_from(v.mask.data, r.mask + col, policy);
  if constexpr (Biased::value) {
    if (v.bias.one_per_row) {
      const float value = v.bias_at(r.bias);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) z[j] = value;
    } else if (v.bias_is_f32) {
#pragma unroll
      for (int j = 0; j < kWidth; j += 4) {
        load_bias(reinterpret_cast<Vec<float, 4>&>(z[j]), v.bias.data, r.bias + col + j, policy);
      }
    } else {
      Pack<T> bias;
      load_bias(bias, v.bias.data, r.bias + col, policy);
      to_float(z, bias);
    }
  }
  float value[kWidth];
  to_float(value, raw);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    z[j] = Biased::value ? fmaf(value[j], v.scale, z[j]) : value[j] * v.scale;
    z[j] = hidden[j] ? -kInfinity : z[j];
  }
  cut_off(z, r.live - col);
}

// A bias takes registers.
template <class Tile, class Biased>
constexpr int min_blocks() {
  return Biased::value ? (Tile::min_blocks * 3 + 3) / 4 : Tile::min_blocks;
}

// Calls body.template operator()<T, Biased>().
template <class Body>
void visit_logits(const LogitArgs& a, Body&& body) {
  dispatch_float(a.dtype, [&]<class T>() {
    if (a.bias.data != nullptr) {
      body.template operator()<T, std::true_type>();
    } else {
      body.template operator()<T, std::false_type>();
    }
  });
}

}  // namespace warpsmith
