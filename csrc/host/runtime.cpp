// The CUDA runtime, which lies in one library that all others are linked with: in each of them it would weigh more than
// its kernels. Linked statically, it shows its functions to nobody; the others are linked with `--wrap` for each name
// below (native/link.py reads them here), so that what they call `f` is `__wrap_f`.
#include <cuda_runtime.h>

extern "C" {

// What nvcc writes calls of, declared nowhere that a C++ compiler sees (crt/host_runtime.h). Those that are weak are not in
// every CUDA from 12.8 on.
void** __cudaRegisterFatBinary(void* binary);
void __cudaRegisterFatBinaryEnd(void** handle);
void __cudaUnregisterFatBinary(void** handle);
void __cudaRegisterFunction(void** handle, const char* host, char* device, const char* name, int thread_limit,
                            uint3* tid, uint3* bid, dim3* block, dim3* grid, int* warp_size);
void __cudaRegisterVar(void** handle, char* host, char* device, const char* name, int external, size_t size,
                       int constant, int global);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream);
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream);
[[gnu::weak]] char __cudaInitModule(void** handle);
[[gnu::weak]] cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function);
[[gnu::weak]] cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                                             size_t shared, cudaStream_t stream);

void** __wrap___cudaRegisterFatBinary(void* binary) { return __cudaRegisterFatBinary(binary); }

void __wrap___cudaRegisterFatBinaryEnd(void** handle) { __cudaRegisterFatBinaryEnd(handle); }

void __wrap___cudaUnregisterFatBinary(void** handle) { __cudaUnregisterFatBinary(handle); }

void __wrap___cudaRegisterFunction(void** handle, const char* host, char* device, const char* name, int thread_limit,
                                   uint3* tid, uint3* bid, dim3* block, dim3* grid, int* warp_size) {
  __cudaRegisterFunction(handle, host, device, name, thread_limit, tid, bid, block, grid, warp_size);
}

void __wrap___cudaRegisterVar(void** handle, char* host, char* device, const char* name, int external, size_t size,
                              int constant, int global) {
  __cudaRegisterVar(handle, host, device, name, external, size, constant, global);
}

unsigned __wrap___cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  return __cudaPushCallConfiguration(grid, block, shared, stream);
}

cudaError_t __wrap___cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  return __cudaPopCallConfiguration(grid, block, shared, stream);
}

char __wrap___cudaInitModule(void** handle) { return __cudaInitModule(handle); }

cudaError_t __wrap___cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  return __cudaGetKernel(kernel, function);
}

cudaError_t __wrap___cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                                      cudaStream_t stream) {
  return __cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

cudaError_t __wrap_cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
                                    cudaStream_t stream) {
  return cudaLaunchKernel(function, grid, block, arguments, shared, stream);
}

cudaError_t __wrap_cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return cudaDeviceGetAttribute(value, attribute, device);
}

cudaError_t __wrap_cudaDeviceSynchronize() { return cudaDeviceSynchronize(); }

cudaError_t __wrap_cudaEventCreate(cudaEvent_t* event) { return cudaEventCreate(event); }

cudaError_t __wrap_cudaEventDestroy(cudaEvent_t event) { return cudaEventDestroy(event); }

cudaError_t __wrap_cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  return cudaEventElapsedTime(ms, from, to);
}

cudaError_t __wrap_cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecord(event, stream); }

cudaError_t __wrap_cudaEventSynchronize(cudaEvent_t event) { return cudaEventSynchronize(event); }

cudaError_t __wrap_cudaFree(void* data) { return cudaFree(data); }

cudaError_t __wrap_cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  return cudaFuncGetAttributes(attributes, function);
}

cudaError_t __wrap_cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(function, attribute, value);
}

cudaError_t __wrap_cudaGetDevice(int* device) { return cudaGetDevice(device); }

cudaError_t __wrap_cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                                    unsigned long long flags, cudaDriverEntryPointQueryResult* result) {
  return cudaGetDriverEntryPointByVersion(symbol, function, version, flags, result);
}

const char* __wrap_cudaGetErrorString(cudaError_t error) { return cudaGetErrorString(error); }

cudaError_t __wrap_cudaGetLastError() { return cudaGetLastError(); }

cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  return cudaLaunchKernelExC(config, function, arguments);
}

cudaError_t __wrap_cudaMalloc(void** data, size_t size) { return cudaMalloc(data, size); }

cudaError_t __wrap_cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  return cudaMemcpy(to, from, size, kind);
}

cudaError_t __wrap_cudaMemsetAsync(void* data, int value, size_t size, cudaStream_t stream) {
  return cudaMemsetAsync(data, value, size, stream);
}

cudaError_t __wrap_cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                                 size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared);
}

cudaError_t __wrap_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function,
                                                                          int threads, size_t shared, unsigned flags) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, flags);
}

cudaError_t __wrap_cudaOccupancyMaxActiveClusters(int* clusters, const void* function,
                                                  const cudaLaunchConfig_t* config) {
  return cudaOccupancyMaxActiveClusters(clusters, function, config);
}

cudaError_t __wrap_cudaPeekAtLastError() { return cudaPeekAtLastError(); }

cudaError_t __wrap_cudaSetDevice(int device) { return cudaSetDevice(device); }

cudaError_t __wrap_cudaStreamGetId(cudaStream_t stream, unsigned long long* id) { return cudaStreamGetId(stream, id); }

cudaError_t __wrap_cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return cudaStreamIsCapturing(stream, status);
}

cudaError_t __wrap_cudaStreamSynchronize(cudaStream_t stream) { return cudaStreamSynchronize(stream); }

}  // extern "C"
