// Maps of matrices for the copy engine (device/ptx/tma.h).
//
//   const CUtensorMap map = tensor_map({.data = x, .type = tensor_map_type(Dtype::bf16), .rows = m, .cols = k, .ld = ld,
//                                       .box_rows = 128, .box_cols = 64});
//
// CUDA driver API, "Tensor Map Object Management": https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TENSOR__MEMORY.html
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "host/dtype.h"
#include "host/launch.h"

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

// A matrix whose rows are contiguous, and the boxes that are copied of it.
struct MappedMatrix {
  const void* data;
  CUtensorMapDataType type;
  int64_t rows, cols;
  int64_t ld;              // elements from one row to the next; anything where there is one only
  int box_rows, box_cols;  // 256 at most; a row of a box is no longer than a line of the swizzle
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
};

constexpr int tensor_map_size_of(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
      return 4;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return 2;
    default:
      return 1;
  }
}

// Whether a matrix of elements of `size` bytes can have a map: copies are made of 16 bytes, coordinates are of 32 bits
// with a sign, and rows neither overlap nor lie 2^40 bytes apart.
inline bool can_map(const void* data, int64_t rows, int64_t cols, int64_t ld, int size) {
  constexpr int64_t kMostExtent = 0x7fffffff, kMostPitch = int64_t{1} << 40;
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0 || rows > kMostExtent || cols > kMostExtent) return false;
  return rows == 1 || (ld >= cols && ld * size % 16 == 0 && ld * size < kMostPitch);
}

namespace detail {

// Of the driver that is loaded already: the library does not link against it.
inline PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
  static const auto encoder = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result),
               "cuTensorMapEncodeTiled");
    if (result != cudaDriverEntryPointSuccess || found == nullptr) {
      throw std::runtime_error("cuTensorMapEncodeTiled: the driver has none");
    }
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
  }();
  return encoder;
}

}  // namespace detail

// Throws where can_map() is false or the box does not fit the swizzle.
inline CUtensorMap tensor_map(const MappedMatrix& x) {
  const int64_t size = tensor_map_size_of(x.type);
  const int64_t pitch = x.rows == 1 ? (x.cols * size + 15) / 16 * 16 : x.ld * size;
  const cuuint64_t extents[2] = {static_cast<cuuint64_t>(x.cols), static_cast<cuuint64_t>(x.rows)};
  const cuuint64_t pitches[1] = {static_cast<cuuint64_t>(pitch)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(x.box_cols), static_cast<cuuint32_t>(x.box_rows)};
  const cuuint32_t every[2] = {1, 1};
  CUtensorMap map;
  const CUresult status = detail::tensor_map_encoder()(&map, x.type, 2, const_cast<void*>(x.data), extents, pitches,
                                                       box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, x.swizzle,
                                                       x.promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw std::runtime_error("cuTensorMapEncodeTiled: error " + std::to_string(static_cast<int>(status)) +
                             " for a matrix of " + std::to_string(x.rows) + " x " + std::to_string(x.cols) +
                             " and boxes of " + std::to_string(x.box_rows) + " x " + std::to_string(x.box_cols));
  }
  return map;
}

}  // namespace warpsmith
