// The CUDA runtime as far as it starts nothing: which GPU there is, memory, errors.
#include "gpu.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace {

// Each has an index of its own, because libraries remember what they asked a device. The first is what programs get that
// choose none.
struct Gpu {
  int sm = emu::number("WARPSMITH_EMULATOR_SM", 90), multiprocessors = emu::number("WARPSMITH_EMULATOR_SMS", 4);
  bool operator==(const Gpu&) const = default;
};

std::vector<Gpu>& gpus() {
  static std::vector<Gpu> all(1);
  return all;
}

int current_gpu = 0;

// Of the driver, which a thread gets by its first call of the runtime that needs one.
thread_local bool has_context = false;

int block_smem_limit(int sm) { return (sm >= 90 ? 227 : (sm == 80 ? 163 : 99)) << 10; }

}  // namespace

namespace emu {

int multiprocessors() { return gpus()[current_gpu].multiprocessors; }

void make_context() { has_context = true; }

}  // namespace emu

extern "C" {

// Makes a GPU of this compute capability and so many multiprocessors the current one.
void emulator_use_gpu(int sm, int multiprocessors) {
  auto& all = gpus();
  Gpu wanted;
  wanted.sm = sm;
  wanted.multiprocessors = multiprocessors;
  const auto found = std::find(all.begin(), all.end(), wanted);
  current_gpu = static_cast<int>(found - all.begin());
  if (found == all.end()) all.push_back(wanted);
}

cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = current_gpu, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return emu::make_context(), cudaSuccess; }  // tensors of the CPU name none
bool emulator_has_context() { return has_context; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaStreamGetId(cudaStream_t, unsigned long long* id) { return *id = 0, cudaSuccess; }

// Aligned as on a GPU.
cudaError_t cudaMalloc(void** data, size_t bytes) {
  emu::make_context();
  constexpr size_t kAlignment = 256;
  *data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  return *data != nullptr || bytes == 0 ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* data) { return std::free(data), cudaSuccess; }
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return std::memcpy(to, from, bytes), cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t) {
  if (emu::is_dry()) {
    emu::note_memset(bytes);
  } else {
    std::memset(to, byte, bytes);
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  const auto [sm, multiprocessors] = gpus().at(device);
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = sm / 10;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = sm % 10;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = multiprocessors;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = block_smem_limit(sm);
      break;
    case cudaDevAttrL2CacheSize:
      *value = 60 << 20;
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 64;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  return *blocks = 2, cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** found, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *found = nullptr;
  *result = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
}
