#include "host/tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "host/launch.h"

namespace warpsmith {

namespace {

// Of the driver that is loaded already: the library does not link against it.
PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
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

// The driver encodes on threads with a current context alone, and a thread may come here before any call of the runtime
// has given it one: autograd's does, where its tensors come from what PyTorch had cached. Without success the driver says
// the same again.
void make_context_current() {
  int device = 0;
  if (cudaGetDevice(&device) == cudaSuccess) cudaSetDevice(device);
}

CUtensorMap encode(const MappedTensor& x) {
  const int64_t size = tensor_map_size_of(x.type);
  cuuint64_t extents[kMostMapRank], pitches[kMostMapRank - 1];  // innermost first, as the driver has them
  cuuint32_t box[kMostMapRank], every[kMostMapRank];
  int64_t pitch = (x.sizes[x.rank - 1] * size + 15) / 16 * 16;  // of a dimension of size 1
  for (int i = 0; i < x.rank; ++i) {
    const int d = x.rank - 1 - i;
    extents[i] = static_cast<cuuint64_t>(x.sizes[d]);
    box[i] = static_cast<cuuint32_t>(x.box[d]);
    every[i] = 1;
    if (i == 0) continue;
    if (x.sizes[d] != 1) pitch = x.strides[d] * size;
    pitches[i - 1] = static_cast<cuuint64_t>(pitch);
  }
  CUtensorMap map;
  const auto ask_driver = [&] {
    return tensor_map_encoder()(&map, x.type, static_cast<cuuint32_t>(x.rank), const_cast<void*>(x.data), extents,
                                pitches, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, x.swizzle, x.promotion,
                                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult status = ask_driver();
  if (status == CUDA_ERROR_INVALID_CONTEXT) {
    make_context_current();
    status = ask_driver();
  }
  if (status == CUDA_SUCCESS) return map;
  std::string shape, boxes;
  for (int d = 0; d < x.rank; ++d) {
    shape += (d > 0 ? " x " : "") + std::to_string(x.sizes[d]);
    boxes += (d > 0 ? " x " : "") + std::to_string(x.box[d]);
  }
  throw std::runtime_error("cuTensorMapEncodeTiled: error " + std::to_string(static_cast<int>(status)) +
                           " for a tensor of " + shape + " and boxes of " + boxes);
}

// The last maps that a thread made: layers and steps of a model ask for the same ones again, and to compare is cheaper than
// the driver.
struct MapCache {
  static constexpr int kEntries = 8;
  MappedTensor keys[kEntries]{};
  CUtensorMap maps[kEntries];
  int next = 0;
};

thread_local MapCache map_cache;

}  // namespace

CUtensorMap tensor_map(const MappedTensor& x) {
  MapCache& cache = map_cache;
  for (int i = 0; i < MapCache::kEntries; ++i) {
    if (cache.keys[i] == x) return cache.maps[i];
  }
  const CUtensorMap map = encode(x);
  const int at = cache.next;
  cache.next = (at + 1) % MapCache::kEntries;
  cache.keys[at] = x;
  cache.maps[at] = map;
  return map;
}

}  // namespace warpsmith
