// What multiplies and copies matrices: device/ptx/mma.h, ldmatrix.h, wmma.h and tensor_copy.h, nvcuda::wmma, and the
// driver's maps of tensors. Registers are laid out as those headers say; the fragments of nvcuda::wmma have an order of
// their own, as which lane holds what is not documented.
#pragma once

#define __CUDA_MMA_H__  // <mma.h> from here on brings nothing

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <type_traits>
#include <utility>

#include "emulator.h"
#include "host/dtype.h"

namespace emu {

// An f32 of which tensor cores ignore the low 13 bits.
struct Tf32 {
  uint32_t bits;
};

inline float tf32_of_number(uint32_t rounded) { return std::bit_cast<float>(rounded & ~0x1fffu); }

inline float to_tf32(float x, bool ties_to_even) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (x != x) return std::bit_cast<float>(0x7fffffffu);  // whose upper bits alone are NaN too
  if ((bits & 0x7f800000u) == 0x7f800000u) return x;
  return tf32_of_number(bits + (ties_to_even ? 0xfff + (bits >> 13 & 1) : 0x1000));
}

// As products are computed: int32_t or float, exactly.
template <class T>
auto widen(T x) {
  if constexpr (std::is_same_v<T, Tf32>) {
    return tf32_of_number(x.bits);
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<int32_t>(x);
  } else {
    return static_cast<float>(x);
  }
}

template <class T>
using Wide = decltype(widen(std::declval<T>()));
template <class T>
using Total = std::conditional_t<std::is_integral_v<T>, int64_t, double>;

// --- mma.sync --------------------------------------------------------------------------------------------------------

template <class T, int n>
std::array<T, 4 * n / sizeof(T)> values_of(const uint32_t (&words)[n]) {
  std::array<T, 4 * n / sizeof(T)> values;
  static_assert(sizeof(values) == sizeof(words));
  std::memcpy(static_cast<void*>(&values), words, sizeof(words));
  return values;
}

// What is added to d[0] to d[3] of device/ptx/mma.h.
template <class T>
std::array<Total<T>, 4> products(const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  constexpr int e = 4 / sizeof(T);  // values of a word
  struct Operands {
    Wide<T> a[4 * e], b[2 * e];
  } mine;
  const auto a_values = values_of<T>(a);
  const auto b_values = values_of<T>(b);
  for (int i = 0; i < 4 * e; ++i) mine.a[i] = widen(a_values[i]);
  for (int i = 0; i < 2 * e; ++i) mine.b[i] = widen(b_values[i]);
  const auto warp = exchange(mine);
  const int g = lane() / 4, t = lane() % 4;
  std::array<Total<T>, 4> sums{};
  for (int i = 0; i < 4; ++i) {
    const int column = 2 * t + i % 2;
    for (int half = 0; half < 2; ++half) {
      for (int word = 0; word < 4; ++word) {
        const auto* row_values = warp.of[4 * g + word].a + (2 * half + i / 2) * e;
        const auto* column_values = warp.of[4 * column + word].b + half * e;
        for (int j = 0; j < e; ++j) sums[i] += Total<T>{row_values[j]} * Total<T>{column_values[j]};
      }
    }
  }
  return sums;
}

template <class T, class Sum>
void add_products(Sum (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  const auto sums = products<T>(a, b);
  for (int i = 0; i < 4; ++i) d[i] = static_cast<Sum>(Total<T>{d[i]} + sums[i]);
}

// --- ldmatrix --------------------------------------------------------------------------------------------------------

// Rows are read before the lanes meet: what another lane wrote without __syncwarp may be missing.
template <int n>
void load_matrices(uint32_t (&to)[n], const void* row, bool transposed) {
  static_assert(n == 1 || n == 2 || n == 4, "1, 2 or 4 matrices");
  std::array<uint16_t, 8> mine{};
  if (lane() < 8 * n) {
    check_aligned(row, sizeof(mine), "a row of ldmatrix");
    shared_offset(row);
    std::memcpy(&mine, row, sizeof(mine));
  }
  const auto rows = exchange(mine);
  const int g = lane() / 4, t = lane() % 4;
  for (int j = 0; j < n; ++j) {
    const auto at = [&](int i) -> uint32_t { return transposed ? rows.of[8 * j + i][g] : rows.of[8 * j + g][i]; };
    to[j] = at(2 * t) | at(2 * t + 1) << 16;
  }
}

// --- maps of tensors -------------------------------------------------------------------------------------------------

inline constexpr int kMostMapRank = 5;

// What a CUtensorMap holds; dimensions innermost first, as the driver has them.
struct TensorMap {
  static constexpr uint64_t kMagic = 0x70616d2078697274;
  uint64_t magic;
  const char* data;
  int64_t sizes[kMostMapRank], pitches[kMostMapRank - 1];  // pitches in bytes
  uint16_t box[kMostMapRank];
  uint8_t rank;
  uint8_t size;  // of a value
  uint8_t line;  // bytes of a line of the swizzle; 0: none
  bool rounds_to_tf32;

  int box_line() const { return box[0] * size; }
  int box_lines() const {
    int lines = 1;
    for (int d = 1; d < rank; ++d) lines *= box[d];
    return lines;
  }
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap) && std::is_trivially_copyable_v<TensorMap>);

// By CUtensorMapDataType; 0: not emulated.
inline constexpr int kMappedSizes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 0, 4, 0};

// CUDA_ERROR_NOT_SUPPORTED: the driver might, the emulator does not.
inline CUresult emulated_tensor_map_encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
                                           const cuuint64_t* extents, const cuuint64_t* pitches, const cuuint32_t* box,
                                           const cuuint32_t* every, CUtensorMapInterleave interleave,
                                           CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                                           CUtensorMapFloatOOBfill fill) {
  const int size = type < std::size(kMappedSizes) ? kMappedSizes[type] : 0;
  if (size == 0 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || swizzle > CU_TENSOR_MAP_SWIZZLE_128B ||
      fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const int line = swizzle == CU_TENSOR_MAP_SWIZZLE_NONE ? 0 : 16 << static_cast<int>(swizzle);
  const auto aligned = [](const void* p, uintptr_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; };
  bool valid = map != nullptr && aligned(map, 64) && aligned(data, 16) && rank >= 1 && rank <= kMostMapRank;
  if (!valid) return CUDA_ERROR_INVALID_VALUE;
  TensorMap made{.magic = TensorMap::kMagic,
                 .data = static_cast<const char*>(data),
                 .rank = static_cast<uint8_t>(rank),
                 .size = static_cast<uint8_t>(size),
                 .line = static_cast<uint8_t>(line),
                 .rounds_to_tf32 = type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32};
  for (cuuint32_t d = 0; d < rank; ++d) {
    valid = valid && extents[d] >= 1 && extents[d] <= uint64_t{1} << 32;
    valid = valid && box[d] >= 1 && box[d] <= 256 && every[d] >= 1 && every[d] <= 8;
    made.sizes[d] = static_cast<int64_t>(extents[d]);
    made.box[d] = static_cast<uint16_t>(box[d]);
    if (d == 0) continue;
    const cuuint64_t pitch = pitches[d - 1];
    valid = valid && pitch % 16 == 0 && pitch < uint64_t{1} << 40 && pitch >= extents[0] * size;
    made.pitches[d - 1] = static_cast<int64_t>(pitch);
  }
  valid = valid && box[0] * size % 16 == 0 && (line == 0 || static_cast<int>(box[0]) * size <= line);
  if (!valid) return CUDA_ERROR_INVALID_VALUE;
  if (std::any_of(every + 1, every + rank, [](cuuint32_t step) { return step != 1; })) return CUDA_ERROR_NOT_SUPPORTED;
  *map = {};
  std::memcpy(static_cast<void*>(map), &made, sizeof(made));
  return CUDA_SUCCESS;
}

inline TensorMap read_map(const CUtensorMap* map) {
  TensorMap found;
  std::memcpy(&found, map, sizeof(found));
  if (found.magic != TensorMap::kMagic) fail("no tensor map");
  return found;
}

using Corner = std::array<int64_t, kMostMapRank>;  // of a box or a chunk of it

// 16 bytes of the tensor, zeros outside it. `at[0]`: a multiple of as many values.
inline std::array<char, 16> chunk_of(const TensorMap& map, const Corner& at) {
  std::array<char, 16> chunk{};
  const char* from = map.data + at[0] * map.size;
  for (int d = 0; d < map.rank; ++d) {
    if (at[d] < 0 || at[d] >= map.sizes[d]) return chunk;
    if (d > 0) from += at[d] * map.pitches[d - 1];
  }
  const int64_t values = std::min<int64_t>(map.sizes[0] - at[0], 16 / map.size);
  std::memcpy(chunk.data(), from, values * map.size);
  if (map.rounds_to_tf32) {
    auto floats = std::bit_cast<std::array<float, 4>>(chunk);
    for (float& x : floats) x = to_tf32(x, /*ties_to_even=*/true);
    chunk = std::bit_cast<std::array<char, 16>>(floats);
  }
  return chunk;
}

// The copy engine reads a box that lies wholly outside where its map begins: seen on an H200, which faults where there is no
// memory. Maps in which a row has several coordinates (gemm/wgmma_groups.cuh) begin before their tensor. Stores, which did not
// fault there, are held to the same.
inline void check_begins_in_memory(const TensorMap& map, const Corner& corner) {
  bool wholly_outside = false, again = false;
  for (int d = 0; d < map.rank; ++d) {
    wholly_outside = wholly_outside || corner[d] >= map.sizes[d] || corner[d] + map.box[d] <= 0;
    again = again || (d > 1 && map.sizes[d] > 1 && map.sizes[d - 1] > 1 && map.pitches[d - 1] == map.pitches[d - 2]);
  }
  if (wholly_outside && again) fail("a box wholly outside a map that begins before its tensor: an illegal address");
}

// To the same place of each block of `ranks`; a copy runs in whichever thread waits for it.
inline void load_box(void* shared, const CUtensorMap* from, int rank, const Corner& corner, uint64_t* barrier,
                     uint32_t ranks) {
  const TensorMap map = read_map(from);
  const uint32_t start = shared_offset(shared);
  if (map.rank != rank) fail("a box of another rank than its tensor map");
  if (start % 128 != 0 || start % std::max(8 * map.line, 1) != 0) fail("misaligned: a box of a tensor map");
  if (corner[0] * map.size % 16 != 0) fail("a box that begins at no multiple of 16 bytes");
  if (map.line != 0 && map.box_line() != map.line) fail("a swizzled box whose rows are no whole lines");
  check_begins_in_memory(map, corner);
  for (int block = 0; block < 32; ++block) {
    if ((ranks >> block & 1) == 0) continue;
    load_later(shared, map.box_lines() * map.box_line(), barrier, block, [=](char* to) {
      const uint32_t mask = map.line == 0 ? 0 : map.line / 16 - 1;  // of the bits of an address that are flipped
      for (int line = 0; line < map.box_lines(); ++line) {
        Corner place = corner;
        for (int d = 1, left = line; d < map.rank; left /= map.box[d++]) place[d] += left % map.box[d];
        for (int c = 0; c < map.box_line(); c += 16) {
          place[0] = corner[0] + c / map.size;
          const auto chunk = chunk_of(map, place);
          const uint32_t at = start + line * map.box_line() + c;
          std::memcpy(to + ((at ^ (at / 128 & mask) * 16) - start), chunk.data(), chunk.size());
        }
      }
    });
  }
}

}  // namespace emu

// --- nvcuda::wmma ----------------------------------------------------------------------------------------------------

namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32;
}

// A lane holds neighbours of the row-major matrix. Nothing is in it at first: NaN.
template <class Use, int m, int n, int k, class T, class Layout = void>
struct fragment {
  static constexpr bool is_tf32 = std::is_same_v<T, precision::tf32>, is_by_columns = std::is_same_v<Layout, col_major>;
  static constexpr bool is_sum = std::is_same_v<Use, accumulator>;
  static_assert((m * n == 256 && (m == 16 || m == 32 || m == 8)) &&
                    (k == 16 || (k == 8 && m == 16 && (is_sum || is_tf32))),
                "shapes of the tensor cores");
  static_assert(is_sum == std::is_void_v<Layout>, "operands have a layout, sums have none");
  using Value = std::conditional_t<is_tf32, float, T>;
  static constexpr int rows = std::is_same_v<Use, matrix_b> ? k : m, cols = std::is_same_v<Use, matrix_a> ? k : n;
  static constexpr int num_elements = rows * cols / 32;
  alignas(4) Value x[num_elements];

  fragment() { std::memset(static_cast<void*>(x), 0xff, sizeof(x)); }

  // Where x[i] of this lane lies in memory.
  static unsigned index(int i, unsigned stride, bool by_columns) {
    const unsigned at = emu::lane() * num_elements + i, row = at / cols, col = at % cols;
    return by_columns ? col * stride + row : row * stride + col;
  }
};

inline float __float_to_tf32(float x) { return emu::to_tf32(x, /*ties_to_even=*/false); }

template <class Fragment>
void fill_fragment(Fragment& to, std::type_identity_t<typename Fragment::Value> value) {
  for (auto& x : to.x) x = value;
}

// Every lane names the same matrix.
template <class T>
void meet_at(const T* matrix, unsigned stride, int alignment = 32) {
  emu::check_aligned(matrix, alignment, "a matrix of wmma");
  if (stride * sizeof(T) % 16 != 0) emu::fail("a stride of wmma that is no multiple of 16 bytes");
  const std::array<uint64_t, 2> mine{reinterpret_cast<uintptr_t>(matrix), stride};
  for (const auto& theirs : emu::exchange(mine).of) {
    if (theirs != mine) emu::fail("lanes name different matrices to wmma");
  }
}

// Read before the lanes meet and written after: whoever relies on that for __syncwarp finds out.
template <class Use, int m, int n, int k, class T, class Layout>
void load_matrix_sync(fragment<Use, m, n, k, T, Layout>& to,
                      const typename fragment<Use, m, n, k, T, Layout>::Value* from, unsigned stride,
                      int alignment = 32) {
  for (int i = 0; i < to.num_elements; ++i) to.x[i] = from[to.index(i, stride, to.is_by_columns)];
  meet_at(from, stride, alignment);
}

template <int m, int n, int k, class T>
void store_matrix_sync(T* to, const fragment<accumulator, m, n, k, T>& from, unsigned stride, layout_t layout) {
  meet_at(to, stride);
  for (int i = 0; i < from.num_elements; ++i) to[from.index(i, stride, layout == mem_col_major)] = from.x[i];
}

template <int m, int n, int k, class T, class LayoutA, class LayoutB, class Sum>
void mma_sync(fragment<accumulator, m, n, k, Sum>& d, const fragment<matrix_a, m, n, k, T, LayoutA>& a,
              const fragment<matrix_b, m, n, k, T, LayoutB>& b, const fragment<accumulator, m, n, k, Sum>& c) {
  constexpr int kOfA = m * k / 32, kOfB = k * n / 32;
  using Value = std::conditional_t<std::is_same_v<T, precision::tf32>, emu::Tf32, T>;
  struct Operands {
    float a[kOfA], b[kOfB];
  } mine;
  for (int i = 0; i < kOfA; ++i) mine.a[i] = emu::widen(std::bit_cast<Value>(a.x[i]));
  for (int i = 0; i < kOfB; ++i) mine.b[i] = emu::widen(std::bit_cast<Value>(b.x[i]));
  const auto warp = emu::exchange(mine);
  for (int i = 0; i < d.num_elements; ++i) {
    const int at = emu::lane() * d.num_elements + i, row = at / n, column = at % n;
    double sum = 0;
    for (int j = 0; j < k; ++j) {
      const int from_a = row * k + j, from_b = j * n + column;
      sum += double{warp.of[from_a / kOfA].a[from_a % kOfA]} * double{warp.of[from_b / kOfB].b[from_b % kOfB]};
    }
    d.x[i] = Sum(static_cast<float>(c.x[i]) + sum);
  }
}

}  // namespace nvcuda::wmma

// --- as device/ptx has it --------------------------------------------------------------------------------------------

#if !defined(EMULATED_ARCH) || EMULATED_ARCH >= 890
#define WARPSMITH_HAS_FP8_MMA 1
#endif

namespace warpsmith::ptx {

template <class T>
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  static_assert(std::is_same_v<T, f16> || std::is_same_v<T, bf16>, "products of 16-bit values");
  emu::add_products<T>(d, a, b);
}

inline void mma_m16n8k16_f16(uint32_t (&d)[2], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  const auto sums = emu::products<f16>(a, b);
  auto values = emu::values_of<f16>(d);
  for (int i = 0; i < 4; ++i) values[i] = f16(static_cast<float>(values[i]) + sums[i]);
  std::memcpy(d, values.data(), sizeof(d));
}

inline void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emu::add_products<emu::Tf32>(d, a, b);
}

inline uint32_t tf32_from_float(float x) { return std::bit_cast<uint32_t>(emu::to_tf32(x, /*ties_to_even=*/false)); }

inline void mma_m16n8k32_s8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emu::add_products<int8_t>(d, a, b);
}

inline void mma_m16n8k32_e4m3(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emu::add_products<e4m3>(d, a, b);
}

inline void mma_m16n8k32_e5m2(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emu::add_products<e5m2>(d, a, b);
}

template <int n>
void ldmatrix(uint32_t (&to)[n], const void* row) {
  emu::load_matrices(to, row, /*transposed=*/false);
}

template <int n>
void ldmatrix_trans(uint32_t (&to)[n], const void* row) {
  emu::load_matrices(to, row, /*transposed=*/true);
}

template <int words, class Fragment>
uint32_t (&words_of(Fragment& fragment)) [words] {
  static_assert(sizeof(fragment.x) == words * sizeof(uint32_t), "the instruction's registers");
  return reinterpret_cast<uint32_t (&)[words]>(fragment.x);
}

namespace fragments {
  using nvcuda::wmma::fragment;
  using nvcuda::wmma::matrix_a;
  using nvcuda::wmma::matrix_b;
  using nvcuda::wmma::row_major;
  using A16x16 = fragment<matrix_a, 16, 16, 16, bf16, row_major>;
  using B16x16 = fragment<matrix_b, 16, 16, 16, bf16, row_major>;
  using A32x8 = fragment<matrix_a, 32, 8, 16, bf16, row_major>;
  using B32x8 = fragment<matrix_b, 32, 8, 16, bf16, row_major>;
  using HalfB32x8 = fragment<matrix_b, 32, 8, 16, f16, row_major>;
}  // namespace fragments

template <class Fragment>
void wmma_load(Fragment& to, const typename Fragment::Value* from, unsigned stride) {
  using namespace fragments;
  static_assert(std::is_same_v<Fragment, A16x16> || std::is_same_v<Fragment, B16x16> ||
                    std::is_same_v<Fragment, A32x8> || std::is_same_v<Fragment, B32x8> ||
                    std::is_same_v<Fragment, HalfB32x8>,
                "fragments of device/ptx/wmma.h");
  emu::shared_offset(from);
  nvcuda::wmma::load_matrix_sync(to, from, stride, /*alignment=*/std::is_same_v<Fragment, A32x8> ? 32 : 16);
}

inline void prefetch_tensor_map(const CUtensorMap* map) { emu::read_map(map); }

template <int rank>
emu::Corner innermost_first(const int (&corner)[rank]) {
  emu::Corner found{};
  for (int d = 0; d < rank; ++d) found[d] = corner[rank - 1 - d];
  return found;
}

template <int rank>
void tensor_load(void* shared, const CUtensorMap* map, const int (&corner)[rank], uint64_t* barrier) {
  emu::load_box(shared, map, rank, innermost_first(corner), barrier, 1u << emu::cluster_rank());
}

template <int rank>
void tensor_load_multicast(void* shared, const CUtensorMap* map, const int (&corner)[rank], uint64_t* barrier,
                           uint16_t blocks) {
  emu::load_box(shared, map, rank, innermost_first(corner), barrier, blocks);
}

}  // namespace warpsmith::ptx
