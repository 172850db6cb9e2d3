// Compiled into every library: its list of kernels, and what it answers about itself.
#include "host/inspect.h"

#include <dlfcn.h>
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "host/kernels.h"
#include "host/ladder.h"

#define WARPSMITH_STRING_(x) #x
#define WARPSMITH_STRING(x) WARPSMITH_STRING_(x)

namespace warpsmith {
namespace {

// "_norm_rms_norm" in a file "warpsmith_norm_rms_norm.so": all libraries have the same code.
std::string prefix() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&prefix), &info) == 0) return "";
  const std::string_view path = info.dli_fname, start = "warpsmith";
  const std::string_view file = path.substr(path.rfind('/') + 1);
  return std::string(file.substr(start.size(), file.find('.') - start.size()));
}

void set_ladder(std::string source, std::string order) {
  const auto setter = ladders().find(source);
  if (setter == ladders().end()) throw std::runtime_error("no ladder '" + source + "' in this library");
  std::vector<std::string> names;
  for (std::string_view rest = order; !rest.empty();) {
    const size_t comma = std::min(rest.find(','), rest.size());
    names.emplace_back(rest.substr(0, comma));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  setter->second(names);
}

std::string get_last_rung() { return std::string(last_rung); }

// The version of CUTLASS whose headers the library was built with; empty where there were none, or no need of them.
std::string get_cutlass() {
#ifdef WARPSMITH_CUTLASS
  return WARPSMITH_STRING(WARPSMITH_CUTLASS);
#else
  return "";
#endif
}

STABLE_TORCH_LIBRARY_FRAGMENT(warpsmith, m) {
  const std::string name = prefix();
  m.def((name + "_ladder(str source, str order) -> ()").c_str());
  m.def((name + "_last_rung() -> str").c_str());
  m.def((name + "_cutlass() -> str").c_str());
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CompositeExplicitAutograd, m) {
  const std::string name = prefix();
  m.impl((name + "_ladder").c_str(), TORCH_BOX(&set_ladder));
  m.impl((name + "_last_rung").c_str(), TORCH_BOX(&get_last_rung));
  m.impl((name + "_cutlass").c_str(), TORCH_BOX(&get_cutlass));
}

}  // namespace

std::vector<KernelEntry>& kernels() {
  static std::vector<KernelEntry> entries;
  return entries;
}

bool enter(const Kernel& kernel, std::string_view source) {
  kernels().push_back({kernel, source});
  return true;
}

}  // namespace warpsmith

extern "C" {

int warpsmith_kernel_count() { return static_cast<int>(warpsmith::kernels().size()); }

int warpsmith_kernel_info(int index, WarpsmithKernelInfo* info) {
  const auto& entry = warpsmith::kernels().at(index);
  cudaFuncAttributes attributes;
  if (const cudaError_t status = cudaFuncGetAttributes(&attributes, entry.kernel.function)) return status;
  *info = {entry.kernel.name.data(),
           static_cast<int>(entry.kernel.name.size()),
           attributes.numRegs,
           static_cast<int>(attributes.sharedSizeBytes),
           attributes.maxDynamicSharedSizeBytes,
           static_cast<int>(attributes.localSizeBytes),
           attributes.maxThreadsPerBlock,
           entry.source.data(),
           static_cast<int>(entry.source.size()),
           entry.kernel.state->last.threads(),
           entry.kernel.state->last.cluster(),
           entry.kernel.state->last.dynamic_smem()};
  return 0;
}

int warpsmith_kernel_occupancy(int index, int threads, int dynamic_smem) {
  int blocks = 0;
  const void* function = warpsmith::kernels().at(index).kernel.function;
  const cudaError_t status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, threads, dynamic_smem);
  return status == cudaSuccess ? blocks : -static_cast<int>(status);
}
}
