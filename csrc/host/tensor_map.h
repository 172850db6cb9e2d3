// Maps of tensors for the copy engine (device/ptx/tma.h), of one to five dimensions, outermost first:
//
//   const CUtensorMap map = tensor_map({.data = x, .type = tensor_map_type(Dtype::bf16), .rank = 3,
//                                       .sizes = {heads, rows, 128}, .strides = {head_stride, row_stride},
//                                       .box = {1, 128, 64}});
//
// CUDA driver API, "Tensor Map Object Management":
// https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TENSOR__MEMORY.html
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>

#include "host/dtype.h"

namespace warpsmith {

// Copied as they are. CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 is f32 rounded to TF32 on the way: to nearest, ties to even;
// infinities and NaN stay.
constexpr CUtensorMapDataType tensor_map_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case Dtype::f16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case Dtype::bf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case Dtype::i32:
      return CU_TENSOR_MAP_DATA_TYPE_INT32;
    default:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  }
}

constexpr int tensor_map_size_of(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
      return 8;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ:
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
      return 4;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
      return 2;
    default:
      return 1;
  }
}

inline constexpr int kMostMapRank = 5;

// A tensor whose last dimension is contiguous, and the boxes that are copied of it. Of the arrays, the first `rank` values
// count, of the strides one less.
struct MappedTensor {
  const void* data;
  CUtensorMapDataType type;
  int rank;
  std::array<int64_t, kMostMapRank> sizes{};
  std::array<int64_t, kMostMapRank - 1> strides{};  // elements; anything for a dimension of size 1
  std::array<int, kMostMapRank> box{};              // 256 at most; the last no longer than a line of the swizzle
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;

  bool operator==(const MappedTensor&) const = default;
};

// A matrix whose rows are contiguous.
struct MappedMatrix {
  const void* data;
  CUtensorMapDataType type;
  int64_t rows, cols;
  int64_t ld;              // elements from one row to the next; anything where there is one only
  int box_rows, box_cols;  // as MappedTensor::box
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
};

inline MappedTensor as_tensor(const MappedMatrix& x) {
  return {.data = x.data,
          .type = x.type,
          .rank = 2,
          .sizes = {x.rows, x.cols},
          .strides = {x.ld},
          .box = {x.box_rows, x.box_cols},
          .swizzle = x.swizzle,
          .promotion = x.promotion};
}

// Whether a tensor of elements of `size` bytes can have a map: copies are made of 16 bytes, coordinates are of 32 bits with
// a sign, and strides neither let lines overlap nor reach 2^40 bytes.
inline bool can_map(const MappedTensor& x, int size) {
  constexpr int64_t kMostExtent = 0x7fffffff, kMostPitch = int64_t{1} << 40;
  if (reinterpret_cast<uintptr_t>(x.data) % 16 != 0) return false;
  const int64_t cols = x.sizes[x.rank - 1];
  for (int d = 0; d < x.rank; ++d) {
    if (x.sizes[d] > kMostExtent) return false;
    if (d + 1 == x.rank || x.sizes[d] == 1) continue;
    const int64_t stride = x.strides[d];
    if (stride < cols || stride * size % 16 != 0 || stride * size >= kMostPitch) return false;
  }
  return true;
}

inline bool can_map(const void* data, int64_t rows, int64_t cols, int64_t ld, int size) {
  return can_map({.data = data, .type = {}, .rank = 2, .sizes = {rows, cols}, .strides = {ld}}, size);
}

// Throws where can_map() is false or the box does not fit the swizzle. A thread's last maps are kept.
CUtensorMap tensor_map(const MappedTensor& x);

inline CUtensorMap tensor_map(const MappedMatrix& x) { return tensor_map(as_tensor(x)); }

}  // namespace warpsmith
