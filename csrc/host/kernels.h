// The kernels of this library, as `warpsmith inspect` lists them.
#pragma once

#include <string_view>
#include <vector>

#include "host/launch.h"

namespace warpsmith {

struct KernelEntry {
  Kernel kernel;
  std::string_view source;  // the file that launches it: "norm/rms_norm/pack.cu"
};

std::vector<KernelEntry>& kernels();

}  // namespace warpsmith
