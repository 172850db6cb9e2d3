// What the GPU is that the emulator pretends to be.
#pragma once

#include <cuda_runtime.h>

#include <cstdlib>

namespace emu {

inline int number(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : otherwise;
}

int multiprocessors();  // of the current GPU

void make_context();  // for this thread of the machine

bool is_dry();  // whether launches start nothing, and are noted instead

dim3 cluster_size(const cudaLaunchConfig_t& config);
void note_launch(const cudaLaunchConfig_t& config);
void note_memset(size_t bytes);

}  // namespace emu
