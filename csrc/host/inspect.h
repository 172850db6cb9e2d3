// What `warpsmith inspect` asks a loaded library, through dlsym: plain C, because only the CUDA runtime that the libraries
// share knows their kernels, and each of them its own names.
#pragma once

#pragma GCC visibility push(default)

extern "C" {

struct WarpsmithKernelInfo {
  const char* name;  // compiler's spelling, not terminated by NUL at name_length
  int name_length;
  int registers;           // per thread
  int static_smem;         // bytes per block
  int dynamic_smem_limit;  // bytes per block that the kernel may be given at present
  int local_bytes;         // per thread; more than zero means spills or dynamically indexed arrays
  int max_threads;         // per block
  const char* source;      // the file that launches it, below csrc; not terminated by NUL at source_length
  int source_length;
  int launch_threads;       // per block, at the last launch or rehearsal; 0: there was none
  int launch_cluster;       // blocks
  int launch_dynamic_smem;  // bytes per block
};

int warpsmith_kernel_count();

// 0, or a cudaError_t.
int warpsmith_kernel_info(int index, WarpsmithKernelInfo* info);

// Resident blocks per multiprocessor at this block size, or a negative cudaError_t.
int warpsmith_kernel_occupancy(int index, int threads, int dynamic_smem);
}

#pragma GCC visibility pop
