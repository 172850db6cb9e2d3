// Launches that start nothing, and are noted instead.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "emulator.h"
#include "gpu.h"

namespace emu {

namespace {

bool dry = number("WARPSMITH_EMULATOR_DRY", 0) != 0;

// Whether the upper bytes are those of an address: of the program itself, or of what is mapped.
bool is_address(uint64_t word) {
  const uint64_t top = word >> 40;
  return top == 0x55 || top == 0x56 || top == 0x7e || top == 0x7f;
}

// FNV-1a: https://datatracker.ietf.org/doc/html/draft-eastlake-fnv
constexpr uint64_t kFnvBasis = 0xcbf29ce484222325u, kFnvPrime = 0x100000001b3u;

thread_local std::string_view noted_kernel;
thread_local uint64_t noted_arguments = kFnvBasis;
std::string notes;  // a line for each launch

bool starts_early(const cudaLaunchConfig_t& config) {
  const cudaLaunchAttribute *begin = config.attrs, *end = begin + config.numAttrs;
  return std::any_of(begin, end, [](const cudaLaunchAttribute& attribute) {
    return attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization;
  });
}

}  // namespace

bool is_dry() { return dry; }

dim3 cluster_size(const cudaLaunchConfig_t& config) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const auto& size = config.attrs[i].val.clusterDim;
    if (config.attrs[i].id == cudaLaunchAttributeClusterDimension) return {size.x, size.y, size.z};
  }
  return 1;
}

void begin_note(std::string_view kernel) {
  noted_kernel = kernel;
  noted_arguments = kFnvBasis;
}

// An address is another one in every process: all that is noted of it is what it is aligned to.
void note_bytes(const void* bytes, size_t count) {
  for (size_t at = 0; at < count; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, static_cast<const unsigned char*>(bytes) + at, std::min(sizeof(word), count - at));
    if (is_address(word)) word = uint64_t{0x7f} << 40 | (word & 15);
    for (int i = 0; i < 8; ++i) noted_arguments = (noted_arguments ^ (word >> (8 * i) & 0xff)) * kFnvPrime;
  }
}

void note_launch(const cudaLaunchConfig_t& config) {
  const dim3 grid = config.gridDim, block = config.blockDim, cluster = cluster_size(config);
  char text[256];
  std::snprintf(text, sizeof(text), "\t%u,%u,%u\t%u,%u,%u\t%u,%u,%u\t%zu\t%d\t%016llx\n", grid.x, grid.y, grid.z,
                block.x, block.y, block.z, cluster.x, cluster.y, cluster.z, config.dynamicSmemBytes,
                starts_early(config) ? 1 : 0, static_cast<unsigned long long>(noted_arguments));
  notes.append(noted_kernel).append(text);
}

void note_memset(size_t bytes) { notes.append("memset\t").append(std::to_string(bytes)).append("\n"); }

}  // namespace emu

extern "C" {

// Whether launches start nothing, and memory is left alone.
void emulator_set_dry(bool wanted) { emu::dry = wanted; }
int emulator_is_dry() { return emu::dry ? 1 : 0; }

// What was noted since this was last asked: of every launch the kernel's name, the grid, the block, the cluster, the bytes
// of dynamic shared memory, whether it starts early, and a digest of its arguments. Valid until it is asked again.
const char* emulator_notes() {
  static std::string told;
  told = std::exchange(emu::notes, {});
  return told.c_str();
}
}
