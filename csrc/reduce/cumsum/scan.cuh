// What the rungs of cumsum share: types, a sequence in its direction, scans over a warp, packs in scan order.
#pragma once

#include <type_traits>

#include "device/convert.h"
#include "device/ptx/copy.h"
#include "device/vec.h"
#include "device/warp.h"
#include "host/launch.h"
#include "host/registry.h"
#include "reduce/cumsum/cumsum.h"

namespace warpsmith {

// What values of type T are summed in, and what the sums are stored as.
template <class T>
struct Scanned {
  using Sum = float;
  using Out = T;
};

template <>
struct Scanned<int32_t> {
  using Sum = int64_t;
  using Out = int64_t;
};

template <class T>
using SumOf = typename Scanned<T>::Sum;
template <class T>
using OutOf = typename Scanned<T>::Out;

template <class T>
__device__ __forceinline__ SumOf<T> widen(T x) {
  if constexpr (std::is_same_v<T, int32_t>) {
    return x;
  } else {
    return to_float(x);
  }
}

template <class T>
__device__ __forceinline__ OutOf<T> narrow(SumOf<T> sum) {
  if constexpr (std::is_same_v<T, int32_t>) {
    return sum;
  } else {
    return from_float<T>(sum);
  }
}

// What one addition after the other is held in: a float would round every time, and there may be many.
template <class T>
using CarryOf = std::conditional_t<std::is_same_v<SumOf<T>, float>, double, SumOf<T>>;

// Calls body.template operator()<T>() for the dtype of a call.
template <class Body>
void visit_scanned(const CumsumArgs& a, Body&& body) {
  if (a.dtype == Dtype::i32) return body.template operator()<int32_t>();
  dispatch_float(a.dtype, body);
}

// --- one value at a time ---------------------------------------------------------------------------------------------

// A sequence of n values, the first of which is the last in memory where the call is reversed.
template <class T>
struct Sequence {
  const T* x;
  OutOf<T>* y;
  int64_t x_step, y_step;

  __device__ Sequence(const CumsumArgs& a, int64_t index) {
    const int64_t o = a.inner == 1 ? index : index / a.inner, i = index - o * a.inner;
    const int64_t first = a.reverse ? a.n - 1 : 0;
    x = static_cast<const T*>(a.x) + o * a.stride_outer + i * a.stride_inner + first * a.stride_n;
    y = static_cast<OutOf<T>*>(a.y) + (o * a.n + first) * a.inner + i;
    x_step = a.reverse ? -a.stride_n : a.stride_n;
    y_step = a.reverse ? -a.inner : a.inner;
  }
  __device__ SumOf<T> load(int64_t j) const { return widen(x[j * x_step]); }
  __device__ void store(int64_t j, SumOf<T> sum) const { y[j * y_step] = narrow<T>(sum); }
};

// --- a warp ----------------------------------------------------------------------------------------------------------

// Sum over this lane and those before it, `lane` counting from the first of them.
template <class S>
__device__ __forceinline__ S warp_scan(S sum, int lane) {
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const S before = __shfl_up_sync(kAllLanes, sum, distance);
    if (lane >= distance) sum = before + sum;
  }
  return sum;
}

template <class S>
__device__ __forceinline__ S warp_scan(S sum) {
  return warp_scan(sum, static_cast<int>(threadIdx.x % kWarp));
}

// Of what warp_scan returned: the sum over the lanes before this one.
template <class S>
__device__ __forceinline__ S before_lane(S scanned, int lane) {
  const S before = __shfl_up_sync(kAllLanes, scanned, 1);
  return lane == 0 ? S{0} : before;
}

template <class S>
__device__ __forceinline__ S before_lane(S scanned) {
  return before_lane(scanned, static_cast<int>(threadIdx.x % kWarp));
}

// --- packs -----------------------------------------------------------------------------------------------------------

template <class V, int n>
__device__ __forceinline__ void flip(V (&values)[n]) {
#pragma unroll
  for (int i = 0; i < n / 2; ++i) {
    const V other = values[i];
    values[i] = values[n - 1 - i];
    values[n - 1 - i] = other;
  }
}

// 128-bit stores of the sums of a pack.
template <class T, int n>
__device__ __forceinline__ void store_sums(OutOf<T>* to, const SumOf<T> (&sums)[n]) {
  Pack<OutOf<T>> pack;
  if constexpr (std::is_same_v<T, int32_t>) {
    constexpr int kStored = kPack<int64_t>;
#pragma unroll
    for (int i = 0; i < n; i += kStored) {
#pragma unroll
      for (int k = 0; k < kStored; ++k) pack[k] = sums[i + k];
      store<Cache::streaming>(to + i, pack);
    }
  } else {
    from_float(pack, sums);
    store<Cache::streaming>(to, pack);
  }
}

// A row in packs, the first of which is the last in memory where Reverse is std::true_type. Aligned: std::true_type where
// x and y lie alike, so that packs can start at 16 bytes in both: the row is then preceded by `skip` places that belong
// to others, which make its first pack whole. Places count in scan order.
template <class T, class Reverse, class Aligned>
struct PackedRow {
  static constexpr int width = kPack<T>;
  using Value = T;
  using Sum = SumOf<T>;
  using Out = OutOf<T>;
  const T* x;
  Out* y;
  int64_t n;  // places
  int skip;

  __device__ PackedRow(const CumsumArgs& a, int64_t row)
      : x(static_cast<const T*>(a.x) + row * a.stride_outer),
        y(static_cast<Out*>(a.y) + row * a.n),
        n(a.n),
        skip(Aligned::value ? past_boundary(Reverse::value ? x + n : x) : 0) {
    if constexpr (Reverse::value) {
      skip = skip == 0 ? 0 : width - skip;
    } else {
      x -= skip, y -= skip;
    }
    n += skip;
  }

  static __device__ int past_boundary(const T* at) {
    return static_cast<int>(reinterpret_cast<uintptr_t>(at) / sizeof(T) % width);
  }

  // Where the i-th value of a pack lies in it.
  static __device__ int in_memory(int i) { return Reverse::value ? width - 1 - i : i; }

  // A pack by its first place.
  __device__ __forceinline__ const T* from(int64_t first) const { return x + offset(first); }
  __device__ __forceinline__ Out* to(int64_t first) const { return y + offset(first); }
  __device__ __forceinline__ int64_t offset(int64_t first) const { return Reverse::value ? n - first - width : first; }
  __device__ __forceinline__ bool is_whole(int64_t first) const { return first >= skip && n - first >= width; }

  // The values of a pack that the row holds: [begin, end).
  struct Held {
    int begin, end;
    __device__ __forceinline__ bool operator()(int i) const { return i >= begin && i < end; }
  };
  __device__ __forceinline__ Held held(int64_t first) const {
    return {first < skip ? skip : 0, static_cast<int>(min(n - first, int64_t{width}))};
  }

  // Starts bringing a pack to shared memory, in the order in which it lies in global memory; zeros in place of what the
  // row does not hold.
  __device__ __forceinline__ void fetch(Pack<T>* slot, int64_t first) const {
    if (!is_whole(first)) {
      *slot = Pack<T>{};
      const Held held = this->held(first);
#pragma unroll 1
      for (int i = held.begin; i < held.end; ++i) (*slot)[in_memory(i)] = from(first)[in_memory(i)];
    } else if constexpr (Aligned::value) {
      ptx::cp_async(reinterpret_cast<uint4*>(slot), reinterpret_cast<const uint4*>(from(first)));
    } else {
      Pack<T> pack;
#pragma unroll
      for (int i = 0; i < width; ++i) pack[i] = from(first)[i];
      *slot = pack;
    }
  }

  // The same into registers.
  template <Cache cache = Cache::streaming>
  __device__ __forceinline__ void load(Pack<T>& pack, int64_t first) const {
    if (Aligned::value && is_whole(first)) {
      warpsmith::load<cache>(pack, from(first));
      return;
    }
    const Held held = this->held(first);
#pragma unroll
    for (int i = 0; i < width; ++i) pack[in_memory(i)] = held(i) ? from(first)[in_memory(i)] : T{};
  }

  // Sums of a pack up to each of its values.
  static __device__ __forceinline__ void scan(Sum (&sums)[width], const Pack<T>& pack) {
    if constexpr (std::is_same_v<T, int32_t>) {
#pragma unroll
      for (int i = 0; i < width; ++i) sums[i] = pack[i];
    } else {
      to_float(sums, pack);
    }
    if constexpr (Reverse::value) flip(sums);
#pragma unroll
    for (int i = 1; i < width; ++i) sums[i] = sums[i - 1] + sums[i];
  }

  // Writes the sums of a pack, `before` being what comes before it.
  __device__ __forceinline__ void store(int64_t first, Sum (&sums)[width], Sum before) const {
#pragma unroll
    for (int i = 0; i < width; ++i) sums[i] = before + sums[i];
    if (Aligned::value && is_whole(first)) {
      if constexpr (Reverse::value) flip(sums);
      store_sums<T>(to(first), sums);
      return;
    }
    const Held held = this->held(first);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      if (held(i)) to(first)[in_memory(i)] = narrow<T>(sums[i]);
    }
  }

  // The same of a pack in shared memory.
  __device__ __forceinline__ void store(int64_t first, const Pack<T>* slot, Sum before) const {
    if (is_whole(first)) {
      Sum sums[width];
      scan(sums, *slot);
      store(first, sums, before);
      return;
    }
    const Held held = this->held(first);
    Sum sum = 0;
#pragma unroll 1
    for (int i = held.begin; i < held.end; ++i) {
      sum += widen((*slot)[in_memory(i)]);
      to(first)[in_memory(i)] = narrow<T>(before + sum);
    }
  }
};

// A warp's share of a tile: kPacks packs per lane, of which the k-th of all lanes are neighbours in the row. They wait
// in shared memory, where a lane reads what it fetched itself, so that neither registers nor barriers limit how many
// bytes are on their way.
template <class Row, int kPacks>
struct WarpTile {
  using Slots = Pack<typename Row::Value>*;
  using Sum = typename Row::Sum;
  static constexpr int values = kWarp * kPacks * Row::width;
  Sum before[kPacks];  // within the tile, before each of this lane's packs
  Sum total;           // of the tile

  static __device__ int64_t place(int64_t first, int k) {
    return first + (k * kWarp + threadIdx.x % kWarp) * Row::width;
  }

  // `slots`: this lane's, `stride` apart.
  static __device__ __forceinline__ void fetch(const Row& row, int64_t first, Slots slots, int stride) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) row.fetch(slots + k * stride, place(first, k));
  }

  __device__ __forceinline__ void scan(Slots slots, int stride) {
    total = 0;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      Sum sums[Row::width];
      Row::scan(sums, slots[k * stride]);
      const Sum scanned = warp_scan(sums[Row::width - 1]);
      before[k] = total + before_lane(scanned);
      total += __shfl_sync(kAllLanes, scanned, kWarp - 1);
    }
  }

  // `prefix`: the sum over the row before all warps' tiles; `earlier`: that of the warps before this one. Small sums
  // meet first, so that few roundings have the size of the large one.
  __device__ __forceinline__ void store(const Row& row, int64_t first, Slots slots, int stride, Sum prefix,
                                        Sum earlier) const {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) row.store(place(first, k), slots + k * stride, prefix + (earlier + before[k]));
  }
};

// Calls body.template operator()<T, Reverse, Aligned>().
template <class Body>
void visit_packed(const CumsumArgs& a, Body&& body) {
  const bool aligned = lies_alike(a);
  visit_scanned(a, [&]<class T>() {
    const auto directed = [&]<class Reverse>() {
      if (aligned) {
        body.template operator()<T, Reverse, std::true_type>();
      } else {
        body.template operator()<T, Reverse, std::false_type>();
      }
    };
    if (a.reverse) {
      directed.template operator()<std::true_type>();
    } else {
      directed.template operator()<std::false_type>();
    }
  });
}

}  // namespace warpsmith
