// The launch of a short kernel that works on what the one before it left: its blocks take their places while that one
// ends, so that starting a grid costs next to nothing (programmatic dependent launch).
// https://docs.nvidia.com/cuda/cuda-c-programming-guide/#programmatic-dependent-launch-and-synchronization
#pragma once

#include "host/launch.h"

namespace warpsmith {

// `kernel` begins with ptx::wait_for_previous_grid(), and takes neither clusters nor dynamic shared memory.
template <auto kernel, class... Params>
void launch_after(const LaunchConfig& config, cudaStream_t stream, const Params&... params) {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  if (Rehearsal::current() || device_info(device).sm < 90) return launch<kernel>(config, stream, params...);

  detail::last_launch<kernel>.note(config);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch_config{};
  launch_config.gridDim = config.grid;
  launch_config.blockDim = config.block;
  launch_config.stream = stream;
  launch_config.attrs = &attribute;
  launch_config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&launch_config, kernel, params...), detail::spelling<kernel>());
}

}  // namespace warpsmith
